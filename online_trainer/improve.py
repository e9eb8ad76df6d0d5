"""One update of the policy: what the trust region allows and the publish gate lets through.

Invariant: whatever is refused here is undone bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from feedback.schemas import Decision
from online_trainer import account
from online_trainer.assign import Assigned
from online_trainer.features import Survey
from online_trainer.judge import Judgement
from online_trainer.publish import gate, probed, write_candidate
from online_trainer.take import Taken
from online_trainer.trainer import Trainer
from online_trainer.update.batch import Batch, NothingToTrain, build, mark
from online_trainer.update.measured_gates import Change, probe_change, probe_fault
from online_trainer.update.step import Step, update

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
    measures: Mapping[str, float] = field(default_factory=dict)


def improve(trainer: Trainer, taken: Taken, seen: Survey, judgement: Judgement, assigned: Assigned) -> Made:
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
        step = _step(trainer, taken, batch, seen, judgement, assigned)
    except NothingToTrain as error:
        return Made(Decision.REFUSED, (f"nothing_to_train: {error}",), None, silent, None, "")
    if fault := step.parity.fault():
        log.warning("%s", fault)
    unused = {**silent, **dict.fromkeys(step.dropped, "abandoned")}
    trainer.parts.boundary("after step")
    decision, reasons = step.outcome.decision, step.outcome.reasons
    if decision is Decision.REFUSED:
        return Made(decision, reasons, step, unused, None, "")
    return _through_the_gate(trainer, taken, step, unused)


def _step(
    trainer: Trainer, taken: Taken, batch: Batch, seen: Survey, judgement: Judgement, assigned: Assigned
) -> Step:
    settings = trainer.parts.agent.training.ppo
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
        entropy=settings.entropy * settings.entropy_decay**trainer.progress.accepted,
        opinions=judgement.opinions(batch.turns),
        own_M=_own(trainer, taken, batch),
    )


def _own(trainer: Trainer, taken: Taken, batch: Batch) -> torch.Tensor:
    """Which turns a version with the head's present weights sampled."""
    same, by_id = trainer.progress.at_head(), {e.episode_id: e for e in taken.experiences}
    return torch.tensor(
        [by_id[episode].turns[number].turn.adapter_version in same for episode, number in batch.turns]
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
    change = _probe_change(trainer, folder, parent, step)
    fault = probe_fault(change, drop=parts.agent.training.trust.probe_drop)
    measures = {"probe/change": change.mean, "probe/upper": change.upper} if change.count else {}
    if reasons := (*gate(folder, parts.expected, parent=parent), *fault):
        step.before.restore(trainer.policy, trainer.optimizer)
        return Made(Decision.REFUSED, reasons, step, unused, None, "", measures)
    parts.boundary("after adapter")
    return Made(step.outcome.decision, step.outcome.reasons, step, unused, digest, name, measures)


def _probe_change(trainer: Trainer, folder: Path, parent: Path | None, step: Step) -> Change:
    """New - old on the fixed probe. The old figures lie beside the parent; without one they are made where they decide."""
    parts = trainer.parts
    old = None if parent is None else probed(parent, parts.probe)
    if old is None and parts.agent.training.trust.probe_drop is not None:
        with trainer.policy.under(step.before.weights):
            old = [trainer.policy.score(ids) for ids in parts.probe]
    new = probed(folder, parts.probe)
    return Change() if old is None or new is None else probe_change(new, old)
