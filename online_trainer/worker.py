"""The trainer's loop. Read `run`: it is the whole of it; every verb's work is done in a file of its own.

Invariant: what decides the next update is in the checkpoint before the update is made, and what it did is in the next one
before anyone is told. A trainer killed anywhere goes on to the same bits.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.schemas import Decision, Experience, TrafficSplit, Update, version_number
from online_trainer import account
from online_trainer.assign import Assigned, Returns, assign, known_returns, train_critic
from online_trainer.batch import Batch, NothingToTrain, Row, build, lay_out, mark
from online_trainer.buffer import stale_turns
from online_trainer.collect import Readable, collect
from online_trainer.features import Survey, survey, widths
from online_trainer.follow import read_split
from online_trainer.judge import Judgement, judge, train_judge
from online_trainer.publish import gate, tidy, write_candidate
from online_trainer.registry import RegistryDown
from online_trainer.state import Letter, Publication, Version
from online_trainer.step import Step, update
from online_trainer.trainer import Trainer

log = logging.getLogger(__name__)


def run(trainer: Trainer, stopping: threading.Event, *, poll_s: float) -> None:
    """collect -> reward model -> critic -> credit -> update -> accept, shrink or refuse -> checkpoint -> offer."""
    while not stopping.is_set():
        is_news = gather(trainer, poll_s=poll_s)
        tell(trainer)
        taken = take(trainer)
        if taken is None:
            trainer.parts.boundary("waiting" if is_news else "idle")
            continue
        seen = study(trainer, taken)
        judgement = reward(trainer, taken)
        known = value(trainer)
        assigned = credit(trainer, taken, judgement, known)
        made = improve(trainer, taken, seen, assigned)
        settle(trainer, taken, judgement, assigned, made)


@dataclass(frozen=True)
class Taken:
    """Episodes given to the policy, and their rows with every turn that does not count marked."""

    experiences: tuple[Experience, ...]
    rows: tuple[Row, ...]
    began: float


@dataclass(frozen=True)
class Made:
    """What became of a batch. `step` is None when nothing in it could be trained."""

    decision: Decision
    reasons: tuple[str, ...]
    step: Step | None
    unused: Mapping[tuple[str, int], str]
    digest: str | None
    folder: str


def gather(trainer: Trainer, *, poll_s: float) -> bool:
    """Read the bus; follow the champion; take note of what MLflow has by now. Whether there was anything.

    A batch that is written down is used first: a resumed trainer must see what the killed one saw.
    """
    if trainer.progress.pending:
        return True
    records = trainer.reader.poll(poll_s)
    found = collect(
        records,
        agent=trainer.parts.agent.agent,
        buffer=trainer.buffer,
        replay=trainer.replay,
        positions=trainer.positions,
        readable=Readable(trainer.policy.vocabulary, trainer.policy.max_length),
        now_ms=trainer.now(),
    )
    trainer.progress.letters += found.dead
    turned = [follow(trainer, split) for split in found.splits]
    published = announce(trainer)
    if any(turned) or published or found.dead:
        trainer.save("followed")
    come_back(trainer)
    monitor = trainer.parts.monitor
    monitor.waiting.set(len(trainer.buffer.waiting))
    monitor.publications.set(len(trainer.progress.publications))
    for (topic, _), behind in trainer.reader.lag().items():
        monitor.lag.labels(topic=topic).set(behind)
    return bool(records or published)


def follow(trainer: Trainer, split: TrafficSplit) -> bool:
    """Go on, or return to the champion and reject what descends from it."""
    progress = trainer.progress
    if split.generation <= progress.generation:
        return False
    turn = read_split(progress, split)
    progress.generation, progress.champion = split.generation, turn.champion
    progress.resolved += turn.resolved
    if turn.champion not in progress.versions:
        champion = split.champion
        progress.versions[turn.champion] = Version(
            at_update=progress.accepted, uri=champion.uri, digest=champion.digest
        )
    if turn.returns:
        progress.return_to = turn.champion
        log.warning("returning to %s, rejected: %s", turn.champion, ", ".join(turn.rejected) or "none")
        _reject(trainer, turn.rejected)
    return True


def _reject(trainer: Trainer, versions: tuple[str, ...]) -> None:
    """The champion's descendants are refused, published or not."""
    progress = trainer.progress
    for name in versions:
        progress.versions[name].rejected = True
    trainer.parts.publisher.cancel([waiting.update.update_id for waiting in progress.publications])
    for waiting in progress.publications:
        if waiting.offer:
            refused = waiting.update.model_copy(
                update={"decision": Decision.REFUSED, "reasons": ("rejected: ancestor",)}
            )
            progress.letters.append(account.update_letter(refused))
    progress.publications = []


def come_back(trainer: Trainer) -> None:
    """Load the champion when the head must return to it; while only MLflow has it and is away, learning waits."""
    target = trainer.progress.return_to
    if target is None:
        return
    try:
        trainer.return_to(target)
    except RegistryDown as error:
        log.warning("cannot return to %s yet: %s", target, error)
        return
    trainer.progress.return_to = None
    trainer.save("returned")


def announce(trainer: Trainer) -> bool:
    """Note what MLflow has; an offer is told once it has its version."""
    progress = trainer.progress
    waiting = {publication.update.update_id for publication in progress.publications}
    done = [p for p in trainer.parts.publisher.results() if p.publication.update.update_id in waiting]
    for published in done:
        publication, version = published.publication, published.version
        progress.publications.remove(publication)
        if version is None:
            continue
        progress.versions[version] = Version(
            at_update=publication.at_update,
            serial=publication.serial,
            uri=published.uri,
            digest=publication.digest,
        )
        progress.reserved = max(progress.reserved, version_number(version))
        offer = publication.update.model_copy(
            update={"version": version, "uri": published.uri, "digest": publication.digest}
        )
        progress.letters.append(account.update_letter(offer))
        log.info("offered %s, parent %s", version, publication.update.parent)
    return bool(done)


def tell(trainer: Trainer) -> None:
    """Send what is written down, hand accepted updates to the publisher."""
    trainer.send()
    trainer.parts.publisher.submit(trainer.progress.publications)


def take(trainer: Trainer) -> Taken | None:
    """A batch that was written down before it is used, or the one that was when the last trainer died."""
    progress, buffer, settings = trainer.progress, trainer.buffer, trainer.parts.agent.training
    if not progress.pending:
        now = trainer.now()
        trainer.parts.monitor.paused.set(float(progress.pause.active(now)))
        progress.letters += [
            account.untrained_letter(experience, agent=progress.agent, reason=reason, at=now)
            for experience, reason in buffer.sift(progress.age(now), settings.staleness)
        ]
        chosen = buffer.ready(now, settings.batch)
        if chosen is None or progress.return_to is not None or progress.pause.active(now):
            return None
        progress.pending = [experience.episode_id for experience in chosen]
        progress.pending_at = now
        trainer.save("batch")
    experiences = buffer.named(progress.pending)
    stale = stale_turns(experiences, progress.age(progress.pending_at), settings.staleness)
    rows = [row for e in experiences for row in lay_out(e, max_length=trainer.policy.max_length)]
    return Taken(experiences, mark(rows, stale), time.monotonic())


def study(trainer: Trainer, taken: Taken) -> Survey:
    """The frozen reference reads the batch and whatever it has not read yet, once."""
    replay = trainer.replay
    by_id = {e.episode_id: e for e in (*replay.unseen.values(), *taken.experiences)}
    seen = survey(
        trainer.policy,
        list(by_id.values()),
        reference=trainer.reference,
        token_budget=trainer.parts.agent.training.token_budget,
    )
    replay.learn(seen)
    return seen


def reward(trainer: Trainer, taken: Taken) -> Judgement:
    """Train the reward model anew on all thumbs, price what nobody rated."""
    settings = trainer.parts.agent.training.reward_model
    _, _, width = widths(trainer.policy)
    seed = trainer.progress.seed * 7919 + trainer.progress.update
    model, trial = train_judge(trainer.replay, features=width, settings=settings, seed=seed)
    lessons = [trainer.replay.lessons[e.episode_id] for e in taken.experiences]
    return judge(model, trial, trainer.replay, lessons, centre=trainer.progress.centre, settings=settings)


def value(trainer: Trainer) -> Returns | None:
    """Teach the critic: Monte-Carlo pre-training before the first policy step, a few steps before each later one."""
    agent, progress = trainer.parts.agent, trainer.progress
    known = known_returns(trainer.replay, weights=agent.rewards.weights, training=agent.training)
    settings = agent.training.critic
    steps = settings.steps_per_update if progress.critic_pretrained else settings.pretrain_steps
    train_critic(trainer.critic, known, steps=steps, generator=trainer.generator(1))
    progress.critic_pretrained = progress.critic_pretrained or known is not None
    return known


def credit(trainer: Trainer, taken: Taken, judgement: Judgement, known: Returns | None) -> Assigned:
    """One advantage per turn of the batch."""
    agent = trainer.parts.agent
    return assign(
        [trainer.replay.lessons[e.episode_id] for e in taken.experiences],
        trainer.replay,
        trainer.critic,
        known,
        judgement.rho,
        weights=agent.rewards.weights,
        training=agent.training,
        scale=trainer.progress.scale,
        generator=trainer.generator(2),
    )


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


def settle(trainer: Trainer, taken: Taken, judgement: Judgement, assigned: Assigned, made: Made) -> None:
    """Account for the update, move the controllers, and write the checkpoint that makes it true."""
    progress, agent = trainer.progress, trainer.parts.agent
    accepted = made.decision is not Decision.REFUSED
    message = _message(trainer, taken, judgement, assigned, made)
    offer = accepted and progress.since_offer + 1 >= agent.offer.min_updates
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


def _message(trainer: Trainer, taken: Taken, judgement: Judgement, assigned: Assigned, made: Made) -> Update:
    progress, agent = trainer.progress, trainer.parts.agent
    episodes = tuple(e.episode_id for e in taken.experiences)
    measures = {
        **(account.step_measures(made.step) if made.step else {}),
        **judgement.measures(),
        **assigned.measures(),
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
