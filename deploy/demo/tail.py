"""The updates as they come, and a copy of every accepted adapter, which the trainer tidies away when it goes on."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Protocol

from feedback.bus import Bus
from feedback.manifest import ManifestError, verify
from feedback.schemas import UPDATES, Update


class AdapterMissing(RuntimeError):
    """An adapter that must be looked at is nowhere; the text says which and where it was sought."""


class Download(Protocol):
    """An adapter from MLflow, complete and verified."""

    def __call__(self, uri: str, digest: str, *, into: Path) -> Path: ...


class UpdateTail:
    """Follows `ratchet.updates` while the demo runs. `adapters` is the trainer's folder, `copies` ours; `away` is what
    `download` raises while MLflow is.
    """

    def __init__(
        self, bus: Bus, adapters: Path, copies: Path, *, download: Download, away: type[Exception]
    ) -> None:
        self._reader = bus.reader([UPDATES])
        self._reader.seek({})
        self._adapters, self._copies = adapters, copies
        self._download, self._away = download, away
        self._decisions: dict[str, str] = {}
        self._made_by: dict[str, str] = {}

    def counts(self) -> dict[str, int]:
        """Accepted, shrunk and refused so far."""
        for record in self._reader.poll(0.05):
            update = Update.from_bytes(record.value)
            self._decisions[update.update_id] = update.decision.value
            if update.digest:
                self._made_by[update.digest] = update.update_id
                self._keep(update.update_id)
        return dict(Counter(self._decisions.values()))

    def copies(self) -> dict[str, Path]:
        """Folder of each kept adapter by digest."""
        named = {digest: self._copies / update_id for digest, update_id in self._made_by.items()}
        return {digest: folder for digest, folder in named.items() if folder.exists()}

    def find(self, digest: str, *, uri: str | None) -> Path:
        """The adapter of these bytes: our copy, or MLflow's where none could be made in time. Raises AdapterMissing."""
        folder = self._copies / self._made_by.setdefault(digest, digest.removeprefix("sha256:"))
        try:
            if folder.exists():
                verify(folder, digest=digest)
                return folder
            if uri is not None:
                return self._download(uri, digest, into=folder)
        except (self._away, ManifestError, OSError) as error:
            raise AdapterMissing(f"adapter {digest}: {error}") from error
        raise AdapterMissing(
            f"adapter {digest}: not in {self._copies}, and it has no address in MLflow: it was never offered"
        )

    def close(self) -> None:
        """Leave the bus."""
        self._reader.close()

    def _keep(self, update_id: str) -> None:
        source, copy = self._adapters / update_id, self._copies / update_id
        if copy.exists():
            return
        temporary = copy.with_name(f".{copy.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            shutil.copytree(source, temporary)
        except (FileNotFoundError, shutil.Error):
            return  # tidied away already: it can only be had from MLflow
        temporary.rename(copy)
