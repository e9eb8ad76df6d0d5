"""The trainer's parts and what survives of them: opened from the newest checkpoint, saved whole, sent until acknowledged.

Invariant: `save` writes everything that decides the next update; `open_trainer` rebuilds it to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from feedback.agent_file import AgentFile
from feedback.bus import Bus, Partition, Reader
from feedback.schemas import EXPERIENCES, TRAFFIC_SPLITS, version_number
from online_trainer.buffer import Buffer
from online_trainer.checkpoint import Checkpoints, Snapshot
from online_trainer.corrections import Spell
from online_trainer.critics.value import Critic
from online_trainer.features import widths
from online_trainer.gate import Expected
from online_trainer.lessons import Replay
from online_trainer.monitor import Monitor
from online_trainer.policy import Policy, State
from online_trainer.post import deliver
from online_trainer.publish import Publisher
from online_trainer.state import Progress
from online_trainer.update.step import new_optimizer

log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """The trainer cannot start; the text says what to change."""


@dataclass(frozen=True)
class Parts:
    """What the trainer works with and does not own the state of."""

    agent: AgentFile
    bus: Bus
    checkpoints: Checkpoints
    publisher: Publisher
    monitor: Monitor
    expected: Expected
    adapters: Path
    probe: Sequence[Sequence[int]]
    clock: Callable[[], int]
    boundary: Callable[[str], None] = lambda _: None
    """Called by name at every place where a process may die; tests raise from it."""
    spell: Spell | None = None
    """Text to the ids of a turn; without it corrections are not read."""


@dataclass
class Trainer:
    """The state of the line: head, optimizer, critic, what was collected, where the bus was read to."""

    parts: Parts
    policy: Policy
    start: State
    reference: State | None
    optimizer: torch.optim.AdamW
    critic: Critic
    progress: Progress
    buffer: Buffer
    replay: Replay
    positions: dict[Partition, int]
    reader: Reader

    def now(self) -> int:
        return self.parts.clock()

    def generator(self, purpose: int) -> torch.Generator:
        """The randomness of one purpose of one update, whenever it is made."""
        progress = self.progress
        return torch.Generator().manual_seed((progress.seed * 1_000_003 + progress.update) * 31 + purpose)

    def save(self, at: str) -> None:
        """One checkpoint of everything; `at` names the place for the fault points."""
        self.parts.boundary(f"before checkpoint: {at}")
        self.progress.serial += 1
        self.parts.checkpoints.save(self.progress.serial, self._snapshot(), pinned=self._pinned())
        self.parts.boundary(f"after checkpoint: {at}")

    def send(self) -> None:
        """Send what the last checkpoint holds; what is not acknowledged is sent again."""
        letters = self.progress.letters
        if letters and (waiting := deliver(self.parts.bus, letters)) != letters:
            self.parts.boundary("after send")
            self.progress.letters = waiting

    def return_to(self, version: str) -> None:
        """Put the head back to a version's weights and optimizer. RegistryDown when only MLflow has them and is away."""
        known = self.progress.versions[version]
        self.optimizer = new_optimizer(self.policy)
        if known.serial is not None and self.parts.checkpoints.has(known.serial):
            saved = self.parts.checkpoints.load(known.serial)
            self.policy.load(saved.tensors["adapter"])
            self.optimizer.load_state_dict(saved.objects["optimizer"])
        elif known.uri is not None and known.digest is not None:
            self.policy.load(self.parts.publisher.fetch(known.uri, known.digest))
        else:
            self.policy.load(self.start)
        self.progress.accepted = known.at_update
        self.progress.since_offer, self.progress.head_folder = 0, None

    def _pinned(self) -> set[int]:
        """Checkpoints that a rollback may need: the champion's and those of offers that are not rejected."""
        progress = self.progress
        live = {
            version.serial
            for name, version in progress.versions.items()
            if not version.rejected and version_number(name) >= version_number(progress.champion)
        }
        offered = {publication.serial for publication in progress.publications if publication.offer}
        return {serial for serial in live | offered if serial is not None}

    def _snapshot(self) -> Snapshot:
        progress, buffer, replay = self.progress, self.buffer, self.replay
        progress.positions = [(topic, number, at) for (topic, number), at in sorted(self.positions.items())]
        progress.waiting = list(buffer.waiting.values())
        progress.settled, progress.untrainable = dict(buffer.settled), dict(buffer.untrainable)
        progress.taken = buffer.taken
        progress.lessons, progress.order = list(replay.lessons.values()), replay.order()
        progress.unseen = list(replay.unseen.values())
        return Snapshot(
            state=progress.model_dump_json(),
            tensors={"adapter": self.policy.state(), "features": replay.tensors()},
            objects={"optimizer": self.optimizer.state_dict(), "critic": self.critic.state()},
        )


def open_trainer(parts: Parts, policy: Policy, *, fresh: Progress, reference: State | None) -> Trainer:
    """From the newest checkpoint, or at the start. Raises StartError when the checkpoint is another agent's."""
    hidden, side, _ = widths(policy)
    saved = parts.checkpoints.newest()
    progress = fresh if saved is None else Progress.model_validate_json(saved.state)
    if progress.agent != parts.agent.agent:
        raise StartError(f"the checkpoint is of agent {progress.agent!r}, not {parts.agent.agent!r}")
    trainer = Trainer(
        parts=parts,
        policy=policy,
        start=policy.state(),
        reference=reference,
        optimizer=new_optimizer(policy),
        critic=Critic(hidden, side, settings=parts.agent.training.critic, seed=progress.seed),
        progress=progress,
        buffer=progress.buffer(),
        replay=Replay(),
        positions={(topic, number): at for topic, number, at in progress.positions},
        reader=parts.bus.reader([EXPERIENCES, TRAFFIC_SPLITS]),
    )
    if saved is not None:
        _load(trainer, saved)
    trainer.reader.seek(trainer.positions)
    parts.publisher.submit(progress.publications, reserved=progress.reserved)
    return trainer


def _load(trainer: Trainer, saved: Snapshot) -> None:
    trainer.policy.load(saved.tensors["adapter"])
    trainer.optimizer.load_state_dict(saved.objects["optimizer"])
    progress = trainer.progress
    if trainer.critic.fits(saved.objects["critic"]):
        trainer.critic.load(saved.objects["critic"])
        trainer.replay = Replay.restore(
            progress.lessons, order=progress.order, tensors=saved.tensors["features"], unseen=progress.unseen
        )
    else:
        log.warning("the checkpoint's critic knew other facts: it learns anew, from what is read from now on")
        progress.critic_pretrained = False
        trainer.replay = Replay.restore(progress.lessons, order=(), tensors={}, unseen=progress.unseen)
    log.info(
        "resumed at update %d, serial %d, champion %s", progress.update, progress.serial, progress.champion
    )
