"""A batch for the policy, written down before it is used.

Invariant: a trainer that died in the middle of a batch takes the same one again, as it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from feedback.schemas import Experience
from online_trainer import account
from online_trainer.buffer import stale_turns
from online_trainer.trainer import Trainer
from online_trainer.update.batch import Row, lay_out, mark


@dataclass(frozen=True)
class Taken:
    """Episodes given to the policy, and their rows with every turn that does not count marked."""

    experiences: tuple[Experience, ...]
    rows: tuple[Row, ...]
    began: float


def take(trainer: Trainer) -> Taken | None:
    """A batch that was written down before it is used, or the one that was when the last trainer died."""
    progress, buffer, settings = trainer.progress, trainer.buffer, trainer.parts.agent.training
    if not progress.pending:
        now = trainer.now()
        trainer.parts.monitor.paused.set(float(progress.pause.active(now)))
        progress.letters += [
            account.untrained_letter(experience, agent=progress.agent, reason=reason, at=now)
            for experience, reason in buffer.sift(
                progress.age(now), settings.staleness, at_most=settings.batch.max_waiting
            )
        ]
        chosen = buffer.ready(now, settings.batch)
        if chosen is None or progress.return_to is not None or progress.pause.active(now):
            return None
        if trainer.parts.publisher.is_offering():
            return None  # an update takes long: the offer is told first
        progress.pending = [experience.episode_id for experience in chosen]
        progress.pending_at = now
        trainer.save("batch")
    experiences = buffer.named(progress.pending)
    stale = stale_turns(experiences, progress.age(progress.pending_at), settings.staleness)
    rows = [row for e in experiences for row in lay_out(e, max_length=trainer.policy.max_length)]
    return Taken(experiences, mark(rows, stale), time.monotonic())
