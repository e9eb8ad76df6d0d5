"""From an accepted update to an adapter folder, to MLflow, to a numbered version.

Invariant: a folder is complete, sealed and through the gate before anyone hears of it; MLflow being away delays offers and
nothing else. The publisher's thread owns no state of the trainer: what it did comes back as results.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedback.manifest import publish, seal
from feedback.probe import Probe, read_probe
from feedback.schemas import version_number
from online_trainer.gate import Expected, inspect_adapter
from online_trainer.policy import Policy, State, read_adapter, write_adapter
from online_trainer.registry import PARENT, UPDATE, Registry, RegistryDown, VersionTaken, first_free
from online_trainer.state import Publication

LONGEST_WAIT_S = 300.0
OFFER_S = 20.0

log = logging.getLogger(__name__)


def write_candidate(policy: Policy, final: Path, *, probe: Sequence[Sequence[int]], base_version: str) -> str:
    """The policy's adapter as a sealed folder with its probe; the digest depends on the weights alone."""
    temporary = final.parent / f".{final.name}"
    for old in (temporary, final):
        shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_adapter(temporary, policy.state(), lora=policy.lora, base=base_version)
    measure_probe(policy, probe).write(temporary)
    digest = seal(temporary)
    publish(temporary, final)
    return digest


def measure_probe(policy: Policy, prompts: Sequence[Sequence[int]]) -> Probe:
    """What the engine must agree with, and the base model that it must differ from."""
    with policy.under(None):
        base = tuple(tuple(policy.score(ids)) for ids in prompts)
    scored = tuple(tuple(policy.score(ids)) for ids in prompts)
    return Probe(prompts=tuple(map(tuple, prompts)), logprobs=scored, base_logprobs=base)


def probed(folder: Path, prompts: Sequence[Sequence[int]]) -> Sequence[Sequence[float]] | None:
    """A written adapter's log-probs on these prompts; None when it is gone or was probed with others."""
    try:
        found = read_probe(folder)
    except ValueError:
        return None
    return found.logprobs if found.prompts == tuple(map(tuple, prompts)) else None


def tidy(folders: Path, *, keep: Collection[str]) -> None:
    """Remove the adapter folders that nobody waits for: MLflow has their bytes, checkpoints have their weights."""
    for folder in (*folders.glob("up_*"), *folders.glob("*fetched-*")):
        if folder.name not in keep:
            shutil.rmtree(folder)


def gate(folder: Path, expected: Expected, *, parent: Path | None) -> tuple[str, ...]:
    """Why this folder may not become a version; empty means it may."""
    return tuple(f"gate: {reason}" for reason in inspect_adapter(folder, expected, parent=parent))


@dataclass(frozen=True)
class Published:
    """One publication that MLflow has: its logged model, and its version when it was an offer."""

    publication: Publication
    uri: str
    version: str | None


def publish_one(
    registry: Registry, publication: Publication, folder: Path, *, agent: str, reserved: int
) -> Published:
    """Log the run and, for an offer, bind the next free version name to its bytes. Repeating it changes nothing."""
    update = publication.update
    tags = {UPDATE: update.update_id, PARENT: update.parent, "reference": update.reference}
    logged = registry.log_update(
        publication.metrics,
        step=publication.step,
        params={"parent": update.parent, "reference": update.reference, "decision": update.decision.value},
        adapter_dir=folder,
        tags=tags,
    )
    if not publication.offer:
        return Published(publication, logged.model_uri, None)
    known = registry.find_digest(publication.digest)
    while known is None:
        version = first_free(agent, reserved=reserved, registry=registry)
        try:
            registry.create_version(
                logged.model_uri,
                version=version,
                digest=publication.digest,
                tags={
                    **tags,
                    "train.episodes": str(update.episodes),
                    "train.rated": str(update.rated),
                    "canary.state": "candidate",
                },
            )
        except VersionTaken:
            reserved = max(reserved, version_number(version))
        known = registry.find_digest(publication.digest)
    return Published(publication, known.uri, known.version)


class Publisher:
    """A thread that works off publications in order and waits, ever longer, while MLflow is away."""

    def __init__(
        self, registry: Registry, folders: Path, *, agent: str, retry_s: float, reserved: int = 0
    ) -> None:
        self.registry = registry
        self._folders = folders
        self._agent = agent
        self._reserved = reserved
        self._retry_s = retry_s
        self._changed = threading.Condition()
        self._queue: dict[str, Publication] = {}
        self._done: list[Published] = []
        self._stopping = False
        self._offered_at = -math.inf
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave the queue as it is: it is in the checkpoint."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def submit(self, publications: Sequence[Publication], *, reserved: int = 0) -> None:
        """Work off these too; one that is already queued stays where it is. Numbers up to `reserved` are used."""
        with self._changed:
            self._reserved = max(self._reserved, reserved)
            told = {done.publication.update.update_id for done in self._done}
            for publication in publications:
                update_id = publication.update.update_id
                if update_id in told or update_id in self._queue:
                    continue
                self._queue[update_id] = publication
                if publication.offer:
                    self._offered_at = time.monotonic()
            self._changed.notify_all()

    def is_offering(self) -> bool:
        """Whether an offer is on its way to MLflow, and for less than OFFER_S: an absent MLflow holds nobody up."""
        with self._changed:
            offers = any(publication.offer for publication in self._queue.values())
            return self._thread.is_alive() and offers and time.monotonic() - self._offered_at < OFFER_S

    def cancel(self, update_ids: Sequence[str]) -> None:
        """Forget what was not begun."""
        with self._changed:
            for update_id in update_ids:
                self._queue.pop(update_id, None)

    def fetch(self, uri: str, digest: str) -> State:
        """The tensors of a version that only MLflow has. RegistryDown, or ManifestError when the bytes differ."""
        name = digest.removeprefix("sha256:")[:32]
        folder = self.registry.download(uri, digest, into=self._folders / f"fetched-{name}")
        return read_adapter(folder)

    def finished(self, done: Published) -> None:
        """MLflow has it."""
        with self._changed:
            self._queue.pop(done.publication.update.update_id, None)
            self._done.append(done)

    def results(self) -> list[Published]:
        """What was finished since the last call."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def _run(self) -> None:
        self.registry.load()
        wait_s = self._retry_s
        while (publication := self._next()) is not None:
            try:
                done = publish_one(
                    self.registry,
                    publication,
                    self._folders / publication.folder,
                    agent=self._agent,
                    reserved=self._reserved,
                )
            except RegistryDown as error:
                log.warning("mlflow is away, next try in %.0f s: %s", wait_s, error)
                with self._changed:
                    self._offered_at = -math.inf
                    self._changed.wait_for(lambda: self._stopping, wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
                continue
            wait_s = self._retry_s
            if done.version is not None:
                self._reserved = max(self._reserved, version_number(done.version))
            self.finished(done)

    def _next(self) -> Publication | None:
        """The oldest publication, waiting for one; None when stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or bool(self._queue))
            return None if self._stopping else next(iter(self._queue.values()))
