"""The demo's own state: it starts from nothing every time, and never deletes what it did not make."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MARK = "made-by-demo"
_STATE = ("db", "kafka", "mlflow", "adapters", "trainer", "log", "supervisor", "demo")


class HomeTaken(ValueError):
    """The home holds state that no demo made; the text says what to do."""


def fresh_home(home: Path) -> Path:
    """Empty an earlier demo's state and return the folder for this one's results. Raises HomeTaken."""
    present = {path.name for path in home.iterdir()} if home.exists() else set()
    if present & set(_STATE) and MARK not in present:
        raise HomeTaken(
            f"{home} holds the state of a stack that is not a demo's; "
            "set RATCHET_HOME to another folder, or remove it yourself"
        )
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).touch()
    for name in _STATE:
        shutil.rmtree(home / name, ignore_errors=True)
    results = home / "demo"
    results.mkdir()
    return results


SHORT_SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "episode": {"idle": "6s", "grace": "6s"},
    "offer": {"min_updates": 1},
    "training": {
        "batch": {"min_episodes": 24, "max_episodes": 24, "min_rated": 8, "min_users": 8},
        "critic": {"pretrain_steps": 20},
    },
}
"""What `--short` changes: one small update is enough to go round once. It claims no learning."""


def own_agent_file(source: Path, target: Path, *, short: bool) -> Path:
    """The agent file itself, or for `--short` a copy that needs less of everything."""
    if not short:
        return source
    raw = yaml.safe_load(source.read_text())
    raw["model"]["path"] = str((source.parent / raw["model"]["path"]).resolve())
    for name, section in SHORT_SECTIONS.items():
        raw[name] = {**raw.get(name, {}), **section}
    target.write_text(yaml.safe_dump(raw, sort_keys=False))
    return target
