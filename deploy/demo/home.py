"""The demo's own state: it starts from nothing every time, and never deletes what it did not make."""

import shutil
from pathlib import Path

import yaml

MARK = "made-by-demo"
_STATE = ("db", "kafka", "mlflow", "adapters", "trainer", "log", "supervisor", "demo")
_KEPT = {MARK, "keys.json", "api-key"}


class HomeTaken(ValueError):
    """The home holds state that no demo made; the text says what to do."""


def fresh_home(home: Path) -> Path:
    """Empty an earlier demo's state and return the folder for this one's results. Raises HomeTaken."""
    present = {path.name for path in home.iterdir()} if home.exists() else set()
    if present - _KEPT and MARK not in present:
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


def own_agent_file(source: Path, target: Path, *, min_updates: int | None) -> Path:
    """The agent file itself, or a copy that offers after `min_updates` updates."""
    if min_updates is None:
        return source
    raw = yaml.safe_load(source.read_text())
    raw["model"]["path"] = str((source.parent / raw["model"]["path"]).resolve())
    raw["offer"] = {**raw.get("offer", {}), "min_updates": min_updates}
    target.write_text(yaml.safe_dump(raw, sort_keys=False))
    return target
