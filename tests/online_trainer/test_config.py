"""Settings come from the environment; `--help` answers without the heavy imports."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from online_trainer.config import Settings


def test_shared_names_and_own_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    monkeypatch.setenv("RATCHET_KAFKA", "127.0.0.1:1234")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("TRAINER_THREADS", "3")
    settings = Settings()
    assert (settings.folder, settings.kafka, settings.threads) == (tmp_path / "trainer", "127.0.0.1:1234", 3)
    assert settings.mlflow == "http://127.0.0.1:1"


def test_a_value_outside_its_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_PORT", "70000")
    with pytest.raises(ValidationError, match="port"):
        Settings()


def test_help_loads_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys, online_trainer.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'mlflow', 'transformers'} & set(sys.modules), 'heavy import'\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "TRAINER_" in found.stdout
