"""An adapter folder that a person offers: verified, through the publish gate, registered under the next number.

Nothing is registered that the gate refuses, and the same bytes are the same version however often they are offered.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deploy.canary import history, ledger
from deploy.canary.steering import Offered, Refused, Steering, Unknown
from feedback.manifest import ManifestError, verify
from feedback.schemas import AdapterRef, version_name, version_number

_NUMBER = "number"
_TRIES = 5


class Named(Protocol):
    """A registered version."""

    @property
    def version(self) -> str:
        """Our name."""

    @property
    def digest(self) -> str:
        """Its bytes."""

    @property
    def uri(self) -> str:
        """Where they are."""

    @property
    def parent(self) -> str | None:
        """What it was trained from."""


class Run(Protocol):
    """A finished run with its logged model."""

    @property
    def model_uri(self) -> str:
        """`models:/m-…`."""


class Registrar(Protocol):
    """The part of the registry that an offer needs."""

    def find_digest(self, digest: str) -> Named | None:
        """The version of these bytes."""

    def find_version(self, version: str) -> Named | None:
        """The version of this name."""

    def next_number(self) -> int:
        """One above the highest ever registered."""

    def log_update(
        self,
        update_measures: Mapping[str, float],
        *,
        step: int,
        params: Mapping[str, str],
        adapter_dir: Path | None,
        tags: Mapping[str, str],
    ) -> Run:
        """A run with the adapter as a logged model."""

    def create_version(self, logged_uri: str, *, version: str, digest: str, tags: Mapping[str, str]) -> None:
        """Bind a name to bytes."""


class Gate(Protocol):
    """Reasons against an adapter folder; none means it may be registered."""

    def __call__(self, folder: Path) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class BadAdapter(ValueError):
    """The folder cannot become a version."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


class Offers:
    """What people offer. `taken` is what the registry raises when a name is bound to other bytes already."""

    def __init__(
        self, steering: Steering, registrar: Registrar, *, gate: Gate, taken: type[Exception]
    ) -> None:
        self._steering = steering
        self._registrar = registrar
        self._gate = gate
        self._taken = taken
        self._one_at_a_time = threading.Lock()

    def offer_folder(self, folder: Path, *, actor: str) -> Offered:
        """Raises BadAdapter, Refused, or whatever the registry raises when it is away."""
        with self._one_at_a_time:
            try:
                digest = verify(folder)
            except (ManifestError, OSError) as error:
                raise BadAdapter((str(error),)) from error
            if reasons := self._gate(folder):
                raise BadAdapter(reasons)
            named = self._registrar.find_digest(digest) or self._register(folder, digest, actor=actor)
            return self._offer(named, actor=actor)

    def offer_version(self, version: str, *, actor: str) -> Offered:
        """One that is registered already. Raises Unknown or Refused."""
        with self._steering.transaction() as conn:
            row = ledger.find_version(conn, version)
            if row is not None:
                ref = AdapterRef(version=row.version, uri=row.uri, digest=row.digest)
                return self._steering.offer(conn, ref, parent=row.parent, actor=actor)
        named = self._registrar.find_version(version)
        if named is None:
            raise Unknown(version)
        return self._offer(named, actor=actor)

    def _offer(self, named: Named, *, actor: str) -> Offered:
        ref = AdapterRef(version=named.version, uri=named.uri, digest=named.digest)
        with self._steering.transaction() as conn:
            return self._steering.offer(conn, ref, parent=named.parent, actor=actor)

    def _register(self, folder: Path, digest: str, *, actor: str) -> Named:
        update_id = f"up_offered_{digest.removeprefix('sha256:')[:32]}"
        tags = {"ratchet.update_id": update_id, "adapter.parent": self._champion(), "offered_by": actor}
        run = self._registrar.log_update({}, step=0, params={}, adapter_dir=folder, tags=tags)
        for _ in range(_TRIES):
            version = self._reserve()
            try:
                self._registrar.create_version(run.model_uri, version=version, digest=digest, tags=tags)
            except self._taken:
                continue
            named = self._registrar.find_digest(digest)
            if named is not None:
                return named
        raise Refused("no free version number: others register at the same time; try again")

    def _champion(self) -> str:
        with self._steering.transaction() as conn:
            return history.champions(conn)[-1].version

    def _reserve(self) -> str:
        """A number nobody has used; ours are remembered before they are used, so that a kill wastes one at most."""
        registered = self._registrar.next_number()
        with self._steering.transaction() as conn:
            known = [version_number(row.version) for row in ledger.list_versions(conn)]
            number = max(registered, 1 + max(known), 1 + (ledger.read_note(conn, _NUMBER) or 0))
            ledger.write_note(conn, _NUMBER, number)
        return version_name(self._steering.agent.agent, number)
