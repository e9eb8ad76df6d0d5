"""One update of the policy: look (old log-probabilities), climb (PPO on minibatches), measure, accept, shrink or refuse.

Invariant: after a refusal weights and optimizer are bit for bit what they were; after acceptance they are what was measured.
N trained tokens, M turns, P positions of one pass, D hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedback.schemas import Decision
from feedback.training_section import Ppo, Training
from online_trainer import ppo
from online_trainer.batch import Batch, NothingToTrain, pack, token_positions
from online_trainer.caps import influence_factors
from online_trainer.kl import k2_loss, k3
from online_trainer.measured_gates import Opinions
from online_trainer.policy import Policy, State
from online_trainer.ppo import RatioStatistics, ratio_statistics
from online_trainer.trust import (
    Limits,
    Measures,
    Moves,
    Outcome,
    backtrack,
    measure,
    moves,
    should_stop,
    too_far,
    wild_gradient,
)


@dataclass(frozen=True)
class Look:
    """One pass over a batch without gradient: hidden states and log-probabilities of the trained tokens."""

    hidden_ND: torch.Tensor
    logprob_N: torch.Tensor


@dataclass(frozen=True)
class Goal:
    """What the steps pursue, per token: advantage (scaled, clipped, capped), which tokens count, old and reference."""

    advantage_N: torch.Tensor
    used_N: torch.Tensor
    old: Look
    reference: Look


@dataclass(frozen=True)
class Climb:
    """What the minibatches did; `norms` are the gradient's, before it was clipped."""

    statistics: RatioStatistics
    norms: tuple[float, ...]
    loss: float
    steps: int
    stopped: str | None

    @property
    def grad_norm(self) -> float:
        """The last one; 0 when no minibatch came so far."""
        return self.norms[-1] if self.norms else 0.0


@dataclass(frozen=True)
class Before:
    """Weights and optimizer as they were, bit for bit."""

    weights: State
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, policy: Policy, optimizer: torch.optim.Optimizer) -> Before:
        return cls(policy.state(), copy.deepcopy(optimizer.state_dict()))

    def restore(self, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
        policy.load(self.weights)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer))


@dataclass(frozen=True)
class Step:
    """One finished update. `dropped` are turns the head has outgrown; `rater_share` is the largest rater's share."""

    outcome: Outcome
    climb: Climb
    dropped: tuple[tuple[str, int], ...]
    rater_share: float
    before: Before


def new_optimizer(policy: Policy) -> torch.optim.AdamW:
    """AdamW without weight decay; the rate is set at every update."""
    return torch.optim.AdamW(policy.parameters, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


@torch.no_grad()
def look(policy: Policy, batch: Batch, *, token_budget: int) -> Look:
    """Hidden states [N, D] at the trained tokens under the weights in force, and their log-probabilities [N]."""
    hidden_ND = torch.zeros((batch.tokens, policy.width))
    logprob_N = torch.zeros(batch.tokens)
    for part in pack(batch.rows, token_positions, token_budget=token_budget):
        hidden_PD = policy.hidden(part).float()
        hidden_ND[part.index_P] = hidden_PD
        logprob_N[part.index_P] = _picked(policy, hidden_PD, batch, part.index_P)
    return Look(hidden_ND, logprob_N)


@torch.no_grad()
def look_at(policy: Policy, hidden_ND: torch.Tensor, batch: Batch, *, chunk: int) -> Look:
    """The same from hidden states that are already known."""
    parts = torch.split(torch.arange(batch.tokens), chunk)
    logprobs = [_picked(policy, hidden_ND[index_P], batch, index_P) for index_P in parts]
    return Look(hidden_ND, torch.cat(logprobs))


def _picked(policy: Policy, hidden_PD: torch.Tensor, batch: Batch, index_P: torch.Tensor) -> torch.Tensor:
    logp_PV = policy.log_softmax(hidden_PD, batch.temperature_N[index_P])
    return logp_PV.gather(1, batch.target_N[index_P, None])[:, 0]


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    advantage_M: torch.Tensor,
    raters: Sequence[str],
    reference_hidden_ND: torch.Tensor,
    training: Training,
    rate: float,
    beta: float,
    generator: torch.Generator,
    norms: Sequence[float] = (),
    entropy: float = 0.0,
    opinions: Opinions | None = None,
) -> Step:
    """Make one update and leave the policy where the trust region allows.

    `raters` names the rater of each row, `norms` are the gradient norms of recent minibatches, `entropy` is the bonus's
    coefficient in force, `opinions` are what judges think of the batch's turns.
    """
    budget = training.token_budget
    before = Before.of(policy, optimizer)
    old = look(policy, batch, token_budget=budget)
    reference = look_at(policy, reference_hidden_ND, batch, chunk=budget)
    goal, dropped, share = _goal(
        batch, old, reference, advantage_M=advantage_M, raters=raters, training=training
    )
    if not bool(goal.advantage_N.any()):
        raise NothingToTrain("the caps on raters and episodes leave no weight")
    for group in optimizer.param_groups:
        group["lr"] = rate
    climb = _climb(
        policy,
        optimizer,
        batch,
        goal,
        training=training,
        beta=beta,
        entropy=entropy,
        norms=norms,
        generator=generator,
    )
    after = policy.state()

    limits = Limits.of(training)

    def measure_at(scale: float) -> Measures:
        policy.load(after if scale == 1.0 else _between(before.weights, after, scale))
        return _measure(policy, batch, goal, climb, training=training, limits=limits, opinions=opinions)

    outcome = _verdict(climb, measure_at, limits)
    if outcome.decision is Decision.REFUSED:
        before.restore(policy, optimizer)
    return Step(outcome, climb, dropped, share, before)


def _goal(
    batch: Batch,
    old: Look,
    reference: Look,
    *,
    advantage_M: torch.Tensor,
    raters: Sequence[str],
    training: Training,
) -> tuple[Goal, tuple[tuple[str, int], ...], float]:
    """Drop the turns that the head has outgrown, cap what one rater and one episode may weigh."""
    turns = len(batch.turns)
    gone_M = too_far(old.logprob_N, batch.mu_N, batch.turn_N, turns=turns, settings=training.staleness)
    used_N = ~gone_M[batch.turn_N]
    advantage_N = torch.where(used_N, advantage_M[batch.turn_N], 0.0)
    weight_N = ppo.truncated_weight(old.logprob_N, batch.mu_N, cap=training.ppo.tis_cap) * advantage_N.abs()
    episodes = sorted({row.episode_id for row in batch.rows})
    place = {episode_id: number for number, episode_id in enumerate(episodes)}
    episode_N = torch.tensor([place[row.episode_id] for row in batch.rows])[batch.row_N]
    weight_E = torch.zeros(len(episodes), dtype=torch.float64).index_add(0, episode_N, weight_N.double())
    rater_of = {row.episode_id: rater for row, rater in zip(batch.rows, raters, strict=True)}
    named = [rater_of[episode_id] for episode_id in episodes]
    factor_E = influence_factors(weight_E.tolist(), named, settings=training.batch)
    capped_N = advantage_N * torch.tensor(factor_E, dtype=advantage_N.dtype)[episode_N]
    share = _largest_share(weight_E.tolist(), factor_E, named)
    dropped = tuple(turn for turn, gone in zip(batch.turns, gone_M.tolist(), strict=True) if gone)
    return Goal(capped_N, used_N, old, reference), dropped, share


def _largest_share(weights: Sequence[float], factors: Sequence[float], raters: Sequence[str]) -> float:
    """The largest rater's share of what is left after the caps."""
    by_rater: dict[str, float] = {}
    for weight, factor, rater in zip(weights, factors, raters, strict=True):
        by_rater[rater] = by_rater.get(rater, 0.0) + weight * factor
    total = sum(by_rater.values())
    return max(by_rater.values()) / total if total > 0 else 0.0


def _climb(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    goal: Goal,
    *,
    training: Training,
    beta: float,
    entropy: float,
    norms: Sequence[float],
    generator: torch.Generator,
) -> Climb:
    """Epochs of minibatches, each one optimizer step, until done or something moved too far."""
    statistics, loss, steps = RatioStatistics(), 0.0, 0
    made: list[float] = []
    limits = Limits.of(training)
    for rows in _minibatches(batch, training, generator):
        optimizer.zero_grad(set_to_none=True)
        share = backward(policy, batch, goal, rows, training=training, beta=beta, entropy=entropy)
        statistics, loss = statistics.plus(share.statistics), loss + share.loss
        if stopped := should_stop(share.k3_old, share.statistics.clip_fraction, limits=limits):
            return Climb(statistics, tuple(made), loss, steps, stopped)
        made.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters, training.optimizer.grad_norm)))
        if wild := wild_gradient(made[-1], (*norms, *made[:-1])):
            return Climb(statistics, tuple(made), loss, steps, wild)
        optimizer.step()
        steps += 1
    optimizer.zero_grad(set_to_none=True)
    return Climb(statistics, tuple(made), loss, steps, None)


def _minibatches(batch: Batch, training: Training, generator: torch.Generator) -> list[list[int]]:
    """Row numbers of each step: whole episodes, in an order that only the generator decides."""
    episodes = sorted({row.episode_id for row in batch.rows})
    of: dict[str, list[int]] = {episode_id: [] for episode_id in episodes}
    for number, row in enumerate(batch.rows):
        of[row.episode_id].append(number)
    steps: list[list[int]] = []
    count = min(training.ppo.minibatches, len(episodes))
    for _ in range(training.ppo.epochs):
        order = torch.randperm(len(episodes), generator=generator).tolist()
        for first in range(count):
            steps.append([row for at in order[first::count] for row in of[episodes[at]]])
    return steps


@dataclass(frozen=True)
class Share:
    statistics: RatioStatistics
    loss: float
    k3_old: float


def backward(
    policy: Policy,
    batch: Batch,
    goal: Goal,
    rows: Sequence[int],
    *,
    training: Training,
    beta: float,
    entropy: float = 0.0,
) -> Share:
    """Gradients of one minibatch; its denominator is the update's tokens over the number of minibatches."""
    settings = training.ppo
    total = max(1.0, float(goal.used_N.sum()) / min(settings.minibatches, len(batch.rows)))
    statistics, loss_sum, moved, weight_sum = RatioStatistics(), 0.0, 0.0, 0.0
    clips = _clips(settings)
    for part in pack(batch.rows, token_positions, token_budget=training.token_budget, only=rows):
        at = part.index_P
        logp_PV = policy.log_softmax(policy.hidden(part), batch.temperature_N[at])
        new_P = logp_PV.gather(1, batch.target_N[at, None])[:, 0]
        old_P, mu_P, used_P = goal.old.logprob_N[at], batch.mu_N[at], goal.used_N[at]
        ratio_P, cap = new_P, settings.tis_cap
        if settings.ratio_level == "turn_geo":
            ratio_P = ppo.turn_level(new_P, old_P, batch.turn_N[at], turns=len(batch.turns))
        loss = ppo.policy_loss(
            ratio_P, old_P, mu_P, goal.advantage_N[at], used_P, **clips, tis_cap=cap, total=total
        )
        if beta > 0:
            pull = k2_loss(new_P, goal.reference.logprob_N[at], old_P, mu_P, used_P, tis_cap=cap, total=total)
            loss = loss + beta * pull
        if entropy > 0:
            spread = ppo.entropy_bonus(logp_PV, old_P, mu_P, used_P, tis_cap=cap, total=total)
            loss = loss - entropy * spread
        loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += float(loss.detach())
        statistics = statistics.plus(
            ratio_statistics(ratio_P, old_P, mu_P, goal.advantage_N[at], used_P, **clips, tis_cap=cap)
        )
        weight_P = ppo.truncated_weight(old_P, mu_P, cap=cap)[used_P]
        moved += float((weight_P * k3(old_P, new_P.detach())[used_P]).sum())
        weight_sum += float(weight_P.sum())
    return Share(statistics, loss_sum, moved / weight_sum if weight_sum > 0 else 0.0)


def _clips(settings: Ppo) -> dict[str, float]:
    """The clips of the level at which ratios are taken."""
    of_turns = settings.ratio_level == "turn_geo"
    return {
        "clip_low": settings.turn_clip_low if of_turns else settings.clip_low,
        "clip_high": settings.turn_clip_high if of_turns else settings.clip_high,
        "dual_clip": settings.dual_clip,
    }


def _measure(
    policy: Policy,
    batch: Batch,
    goal: Goal,
    climb: Climb,
    *,
    training: Training,
    limits: Limits,
    opinions: Opinions | None,
) -> Measures:
    """Measure every other episode, and the rest too where that half is not clear: a pass costs as much as half a step."""
    episodes = sorted({row.episode_id for row in batch.rows})
    first = set(episodes[::2])
    halves: tuple[list[int], list[int]] = ([], [])
    for number, row in enumerate(batch.rows):
        halves[row.episode_id not in first].append(number)
    chunks = _moves(policy, batch, goal, halves[0], training=training)
    if chunks:
        found = measure(chunks, statistics=climb.statistics, grad_norm=climb.grad_norm, opinions=opinions)
        if is_clear(found, limits):
            return found
    chunks += _moves(policy, batch, goal, halves[1], training=training)
    return measure(chunks, statistics=climb.statistics, grad_norm=climb.grad_norm, opinions=opinions)


def is_clear(measures: Measures, limits: Limits) -> bool:
    """Whether half of a batch settles the matter: all measures below half of their limits, or one above twice its own."""
    shares = [
        measures.k3_old / limits.k3_old_refuse,
        measures.k3_mu / limits.k3_mu,
        measures.kl_ref / limits.kl_ref,
        measures.m2 / limits.m2,
        measures.turn_kl / limits.turn_kl,
        measures.big_move_share / limits.big_move_share,
        limits.ess / max(measures.ess, 1e-9),
    ]
    return max(shares[:-1]) > 2.0 or (max(shares[:-1]) < 0.5 and shares[-1] < 1.0 / 1.2)


@torch.no_grad()
def _moves(
    policy: Policy, batch: Batch, goal: Goal, rows: Sequence[int], *, training: Training
) -> list[Moves]:
    """Measure the used tokens of some rows under the weights in force, one chunk per forward pass."""
    chunks = []
    for part in pack(batch.rows, token_positions, token_budget=training.token_budget, only=rows):
        used_P = goal.used_N[part.index_P]
        at = part.index_P[used_P]
        if not len(at):
            continue
        temperature_P = batch.temperature_N[at]
        chunks.append(
            moves(
                batch.target_N[at],
                batch.turn_N[at],
                new_NV=policy.log_softmax(policy.hidden(part)[used_P], temperature_P),
                old_NV=policy.log_softmax(goal.old.hidden_ND[at], temperature_P),
                reference_NV=policy.log_softmax(goal.reference.hidden_ND[at], temperature_P),
                mu_N=batch.mu_N[at],
                tis_cap=training.ppo.tis_cap,
            )
        )
    return chunks


def _verdict(climb: Climb, measure_at: Callable[[float], Measures], limits: Limits) -> Outcome:
    """Keep the largest share of the step that may stay. A climb that broke, or took no step, is refused."""
    broken = climb.stopped if climb.stopped and climb.stopped.startswith("non_finite") else None
    if broken or not climb.steps:
        return Outcome(0.0, measure_at(1.0), (broken or climb.stopped or "no_step",))
    return backtrack(measure_at, limits)


def _between(before: State, after: State, scale: float) -> State:
    """before + scale (after - before)."""
    return {name: before[name] + scale * (after[name] - before[name]) for name in before}
