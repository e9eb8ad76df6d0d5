"""After an update: messages, controllers, the checkpoint that makes it true, one line of log.

Invariant: nothing is told that a checkpoint does not hold.
"""

from __future__ import annotations

import logging
import math
import time

from feedback.schemas import Decision, Update
from online_trainer import account
from online_trainer.assign import Assigned
from online_trainer.improve import Made
from online_trainer.judge import Judgement
from online_trainer.publish import tidy
from online_trainer.state import Letter, Publication
from online_trainer.take import Taken
from online_trainer.trainer import Trainer
from online_trainer.update.batch import Row
from online_trainer.update.trust import Limits

log = logging.getLogger(__name__)
KEPT_NORMS = 20


def settle(trainer: Trainer, taken: Taken, judgement: Judgement, assigned: Assigned, made: Made) -> None:
    """Account for the update, move the controllers, and write the checkpoint that makes it true."""
    progress, agent = trainer.progress, trainer.parts.agent
    accepted = made.decision is not Decision.REFUSED
    message = _message(trainer, taken, judgement, assigned, made)
    offer = accepted and is_due(
        progress.since_offer + 1,
        message.measures.get("k3_mu", 0.0),
        usual=agent.offer.min_updates,
        limit=Limits.of(agent.training).k3_mu,
    )
    _control(trainer, taken, judgement, assigned, made)
    if accepted:
        progress.accepted += 1
        progress.since_offer = 0 if offer else progress.since_offer + 1
        progress.head_folder = made.folder
        progress.publications.append(_publication(trainer, taken, message, made, offer=offer))
    progress.letters += _credits(trainer, taken, assigned, made, update=message.update_id)
    if not offer:
        progress.letters.append(account.update_letter(message))
    for experience in taken.experiences:
        trainer.buffer.settle(experience)
    trainer.buffer.taken += len(taken.experiences)
    trainer.buffer.forget(trainer.now() - 2 * int(1000 * agent.training.staleness.max_age_s))
    trainer.replay.trim(agent.training.critic.replay, keep=trainer.buffer.waiting)
    progress.pending, progress.update = [], progress.update + 1
    trainer.save("update")
    waiting = {publication.folder for publication in progress.publications}
    tidy(trainer.parts.adapters, keep=waiting | {progress.head_folder or ""})
    _report(trainer, taken, message)


def is_due(accepted: int, k3_mu: float, *, usual: int, limit: float) -> bool:
    """Whether the head is offered after so many accepted updates: the usual number; or half of it once half of the way that
    a head may go from its sampler is gone, since only a promotion brings the two together again.
    """
    return accepted >= usual or (accepted >= usual / 2 and k3_mu > limit / 2)


def _message(trainer: Trainer, taken: Taken, judgement: Judgement, assigned: Assigned, made: Made) -> Update:
    progress, agent = trainer.progress, trainer.parts.agent
    episodes = tuple(e.episode_id for e in taken.experiences)
    measures = {
        **(account.step_measures(made.step) if made.step else {}),
        **judgement.measures(),
        **assigned.measures(),
        **made.measures,
        "lr": progress.rate.rate,
        "beta": progress.beta.beta,
    }
    return Update(
        update_id=account.update_id(agent.agent, progress.update, episodes),
        agent=agent.agent,
        parent=progress.parent,
        reference=agent.base_version,
        digest=made.digest,
        decision=made.decision,
        reasons=made.reasons,
        measures=measures,
        episodes=len(episodes),
        rated=sum(e.thumb is not None for e in taken.experiences),
        episode_ids=episodes,
        at=trainer.now(),
    )


def _control(trainer: Trainer, taken: Taken, judgement: Judgement, assigned: Assigned, made: Made) -> None:
    """Learning rate, beta, pause and running scales follow what was measured."""
    progress, trust = trainer.progress, trainer.parts.agent.training.trust
    progress.centre, progress.scale = judgement.centre, assigned.scale
    progress.decisions[made.decision.value] = progress.decisions.get(made.decision.value, 0) + 1
    if made.step is None:
        return
    measured = made.step.outcome.measures
    progress.norms = [*progress.norms, *filter(math.isfinite, made.step.climb.norms)][-KEPT_NORMS:]
    progress.rate = progress.rate.after(measured.k3_old, made.decision, made.reasons)
    if math.isfinite(measured.kl_ref):
        progress.beta = progress.beta.after(measured.kl_ref, len(taken.experiences))
    progress.pause = progress.pause.after(made.decision, made.reasons, now_ms=trainer.now(), settings=trust)


def _publication(trainer: Trainer, taken: Taken, message: Update, made: Made, *, offer: bool) -> Publication:
    progress = trainer.progress
    seconds = time.monotonic() - taken.began
    return Publication(
        update=message,
        folder=made.folder,
        digest=made.digest or "",
        step=progress.update,
        at_update=progress.accepted,
        serial=progress.serial + 1,
        metrics=account.metrics({**message.measures, "seconds": seconds, "episodes": message.episodes}),
        offer=offer,
    )


def _credits(trainer: Trainer, taken: Taken, assigned: Assigned, made: Made, *, update: str) -> list[Letter]:
    refused = {
        (e.episode_id, number): "refused"
        for e in taken.experiences
        for number in range(len(e.turns))
        if made.decision is Decision.REFUSED
    }
    by_episode: dict[str, list[Row]] = {e.episode_id: [] for e in taken.experiences}
    for row in taken.rows:
        by_episode[row.episode_id].append(row)
    return [
        account.credit_letter(
            experience,
            assigned,
            by_episode[experience.episode_id],
            agent=trainer.parts.agent.agent,
            update=update,
            unused={**refused, **made.unused},
            at=trainer.now(),
        )
        for experience in taken.experiences
    ]


def _report(trainer: Trainer, taken: Taken, message: Update) -> None:
    """One line and the metrics."""
    progress, measures = trainer.progress, message.measures
    monitor = trainer.parts.monitor
    monitor.updated(message.decision, measures, at_ms=message.at)
    monitor.episodes.inc(message.episodes)
    monitor.accepted.set(progress.accepted)
    for reason, count in trainer.buffer.untrainable.items():
        monitor.untrainable.labels(reason=reason).set(count)
    log.info(
        "update %d %s: %d episodes, %d rated, k3 %.2g, kl_ref %.2g, lr %.2g, %.1f s%s",
        progress.update,
        message.decision.value,
        message.episodes,
        message.rated,
        measures.get("k3_old", 0.0),
        measures.get("kl_ref", 0.0),
        measures["lr"],
        time.monotonic() - taken.began,
        f" ({'; '.join(message.reasons)})" if message.reasons else "",
    )
