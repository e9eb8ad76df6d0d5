"""The trainer's one durable truth: a folder written beside, flushed, and renamed once. What is not in it never happened.

Invariant: a checkpoint is whole or absent, only the holder of the lease writes one, and the newest plus those that a live
version needs are kept.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file

from feedback.manifest import flush, flush_folder

_STATE = "state.json"


class LeaseLost(RuntimeError):
    """Another trainer runs on this home, or ran since: this one must not write."""


@dataclass(frozen=True)
class Snapshot:
    """What is saved together: a JSON text, named groups of tensors, and named torch states (optimizer, critic, …)."""

    state: str
    tensors: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)


class Lease:
    """At most one trainer per home: the operating system frees the lock when its holder dies; the epoch fences what it left."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "lease"
        self._handle = self._path.open("a+")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._handle.close()
            raise LeaseLost(f"another trainer holds {self._path}") from error
        self.epoch = self._read() + 1
        self._path.write_text(str(self.epoch))

    def check(self) -> None:
        """Raise LeaseLost when somebody took over."""
        if self._read() != self.epoch:
            raise LeaseLost(f"lease {self.epoch} of {self._path} was taken over by {self._read()}")

    def release(self) -> None:
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _read(self) -> int:
        text = self._path.read_text().strip()
        return int(text) if text else 0


class Checkpoints:
    """The folder of checkpoints, by a serial number that only grows."""

    def __init__(self, root: Path, *, keep: int, lease: Lease) -> None:
        self._root = root
        self._keep = keep
        self._lease = lease
        root.mkdir(parents=True, exist_ok=True)
        for half in root.glob(".*"):
            shutil.rmtree(half)

    def serials(self) -> list[int]:
        """Oldest first."""
        return sorted(int(path.name) for path in self._root.iterdir() if path.name.isdigit())

    def save(self, serial: int, snapshot: Snapshot, *, pinned: Collection[int] = ()) -> None:
        """Write, flush, rename; then remove what nobody needs."""
        self._lease.check()
        half, whole = self._root / f".{serial:08d}", self._path(serial)
        half.mkdir()
        (half / _STATE).write_text(snapshot.state)
        for name, group in snapshot.tensors.items():
            save_file({key: value.contiguous() for key, value in group.items()}, half / f"{name}.safetensors")
        for name, value in snapshot.objects.items():
            torch.save(value, half / f"{name}.pt")
        flush_folder(half)
        self._lease.check()
        half.rename(whole)
        flush(self._root)
        for old in self.serials()[: -self._keep]:
            if old not in pinned:
                shutil.rmtree(self._path(old))

    def newest(self) -> Snapshot | None:
        """What to resume from; None on the first start."""
        serials = self.serials()
        return self.load(serials[-1]) if serials else None

    def load(self, serial: int) -> Snapshot:
        """One checkpoint by its serial."""
        folder = self._path(serial)
        return Snapshot(
            state=(folder / _STATE).read_text(),
            tensors={path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))},
            objects={path.stem: torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))},
        )

    def has(self, serial: int) -> bool:
        return self._path(serial).is_dir()

    def _path(self, serial: int) -> Path:
        return self._root / f"{serial:08d}"
