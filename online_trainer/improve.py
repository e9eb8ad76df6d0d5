"""One update of the policy: what the trust region allows and the publish gate lets through.

Invariant: whatever is refused here is undone bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.schemas import Decision
from online_trainer import account
from online_trainer.assign import Assigned
from online_trainer.batch import Batch, NothingToTrain, build, mark
from online_trainer.features import Survey
from online_trainer.publish import gate, write_candidate
from online_trainer.step import Step, update
from online_trainer.take import Taken
from online_trainer.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """What became of a batch. `step` is None when nothing in it could be trained."""

    decision: Decision
    reasons: tuple[str, ...]
    step: Step | None
    unused: Mapping[tuple[str, int], str]
    digest: str | None
    folder: str


def improve(trainer: Trainer, taken: Taken, seen: Survey, assigned: Assigned) -> Made:
    """Update the policy, keep what the trust region allows, and refuse what the publish gate would."""
    silent = {
        (e.episode_id, number): "no_signal"
        for e in taken.experiences
        if not assigned.carries_signal(e.episode_id)
        for number in range(len(e.turns))
    }
    try:
        batch = build(mark(taken.rows, silent))
        log.info("batch: %d of %d ids are trained, %d rows", batch.tokens, batch.total_ids, len(batch.rows))
        step = _step(trainer, taken, batch, seen, assigned)
    except NothingToTrain as error:
        return Made(Decision.REFUSED, (f"nothing_to_train: {error}",), None, silent, None, "")
    unused = {**silent, **dict.fromkeys(step.dropped, "abandoned")}
    trainer.parts.boundary("after step")
    decision, reasons = step.outcome.decision, step.outcome.reasons
    if decision is Decision.REFUSED:
        return Made(decision, reasons, step, unused, None, "")
    return _through_the_gate(trainer, taken, step, unused)


def _step(trainer: Trainer, taken: Taken, batch: Batch, seen: Survey, assigned: Assigned) -> Step:
    raters = {e.episode_id: e.rater for e in taken.experiences}
    return update(
        trainer.policy,
        trainer.optimizer,
        batch,
        advantage_M=_per_turn(batch.turns, assigned),
        raters=[raters[row.episode_id] for row in batch.rows],
        reference_hidden_ND=seen.reference_ND(batch),
        training=trainer.parts.agent.training,
        rate=trainer.progress.rate.rate,
        beta=trainer.progress.beta.beta,
        norms=trainer.progress.norms,
        generator=trainer.generator(3),
    )


def _per_turn(turns: Sequence[tuple[str, int]], assigned: Assigned) -> torch.Tensor:
    return torch.tensor([assigned.advantage[episode_id][number] for episode_id, number in turns])


def _through_the_gate(
    trainer: Trainer, taken: Taken, step: Step, unused: Mapping[tuple[str, int], str]
) -> Made:
    """Write the adapter and let the gate look at the file; what it refuses is undone."""
    parts, progress = trainer.parts, trainer.progress
    name = account.update_id(parts.agent.agent, progress.update, [e.episode_id for e in taken.experiences])
    folder = parts.adapters / name
    digest = write_candidate(trainer.policy, folder, probe=parts.probe, base_version=parts.agent.base_version)
    parent = parts.adapters / progress.head_folder if progress.head_folder else None
    if reasons := gate(folder, parts.expected, parent=parent):
        step.before.restore(trainer.policy, trainer.optimizer)
        return Made(Decision.REFUSED, reasons, step, unused, None, "")
    parts.boundary("after adapter")
    return Made(step.outcome.decision, step.outcome.reasons, step, unused, digest, name)
