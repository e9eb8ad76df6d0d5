"""An adapter folder and its digest. A folder is written under a temporary name, its manifest last, and renamed once: half of one is never seen.

The digest is the SHA-256 of the manifest's file list, so the same bytes have the same digest everywhere.
"""

import hashlib
import json
import os
from pathlib import Path

MANIFEST = "manifest.json"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PROBE = "probe.json"
_REQUIRED = {WEIGHTS, CONFIG}
_ALLOWED = {WEIGHTS, CONFIG, PROBE}


class ManifestError(ValueError):
    """The folder is not the adapter it says it is; the text names the file."""


def seal(folder: Path) -> str:
    """Write the manifest of a finished folder and return its digest (`sha256:…`)."""
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    _check_names(present)
    files = {name: _sha256(folder / name) for name in sorted(present)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, sort_keys=True, indent=1))
    return _digest(files)


def verify(folder: Path, *, digest: str | None = None) -> str:
    """Check every file against the manifest, and the whole against `digest`. Raises ManifestError; returns the digest."""
    try:
        files: dict[str, str] = dict(json.loads((folder / MANIFEST).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{folder.name}: no readable {MANIFEST}") from error
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    _check_names(present)
    if present != set(files):
        raise ManifestError(
            f"{folder.name}: files {sorted(present ^ set(files))} are not as the manifest lists them"
        )
    for name, expected in files.items():
        if _sha256(folder / name) != expected:
            raise ManifestError(f"{folder.name}: {name} does not match its SHA-256")
    found = _digest(files)
    if digest is not None and found != digest:
        raise ManifestError(f"{folder.name}: digest {found} is not the expected {digest}")
    return found


def publish(temporary: Path, final: Path) -> None:
    """Flush a sealed folder and rename it to a name that was never used. FileExistsError when it was."""
    if final.exists():
        raise FileExistsError(f"{final} exists: a version's name is never bound to other bytes")
    flush_folder(temporary)
    temporary.rename(final)
    flush(final.parent)


def flush_folder(folder: Path) -> None:
    """To disk, its files first: one that has its final name must not be found empty after a power cut."""
    for path in [*folder.iterdir(), folder]:
        flush(path)


def flush(path: Path) -> None:
    """A file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_names(present: set[str]) -> None:
    if missing := _REQUIRED - present:
        raise ManifestError(f"missing {sorted(missing)}")
    if unknown := present - _ALLOWED:
        raise ManifestError(f"unknown files {sorted(unknown)}: an adapter holds {sorted(_ALLOWED)} only")


def _digest(files: dict[str, str]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
