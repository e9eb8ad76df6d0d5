"""One update of the policy: look (old log-probabilities), climb (PPO on minibatches), measure, accept, shrink or refuse.

Invariant: after a refusal weights and optimizer are bit for bit what they were; after acceptance they are what was measured.
N trained tokens, M turns, E episodes, D hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedback.schemas import Decision
from feedback.training_section import Training
from online_trainer.policy import Policy, State
from online_trainer.update import ppo
from online_trainer.update.batch import Batch, NothingToTrain
from online_trainer.update.caps import influence_factors
from online_trainer.update.climb import Climb, Goal, climb
from online_trainer.update.look import Look, look, look_at
from online_trainer.update.measured_gates import Opinions
from online_trainer.update.movement import measure_batch
from online_trainer.update.parity import Parity
from online_trainer.update.trust import Limits, Measures, Outcome, backtrack, too_far


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
    """One finished update. `dropped` are turns the head has outgrown; `rater_share` is the largest rater's share; `parity`
    holds the engine against the head as it was before."""

    outcome: Outcome
    climb: Climb
    dropped: tuple[tuple[str, int], ...]
    rater_share: float
    before: Before
    parity: Parity


def new_optimizer(policy: Policy) -> torch.optim.AdamW:
    """AdamW without weight decay; the rate is set at every update."""
    return torch.optim.AdamW(policy.parameters, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


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
    own_M: torch.Tensor | None = None,
) -> Step:
    """Make one update and leave the policy where the trust region allows.

    `raters` names the rater of each row, `norms` are the gradient norms of recent minibatches, `entropy` is the bonus's
    coefficient in force, `opinions` are what judges think of the batch's turns, `own_M` marks those that the weights in force
    sampled.
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
    climbed = climb(
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
        return measure_batch(
            policy, batch, goal, climbed, training=training, limits=limits, opinions=opinions
        )

    outcome = _verdict(climbed, measure_at, limits)
    if outcome.decision is Decision.REFUSED:
        before.restore(policy, optimizer)
    return Step(outcome, climbed, dropped, share, before, _parity(batch, old, own_M))


def _parity(batch: Batch, old: Look, own_M: torch.Tensor | None) -> Parity:
    if own_M is None:
        return Parity()
    own_N = own_M[batch.turn_N]
    return Parity.of(old.logprob_N[own_N], batch.mu_N[own_N])


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


def _verdict(climbed: Climb, measure_at: Callable[[float], Measures], limits: Limits) -> Outcome:
    """Keep the largest share of the step that may stay. A climb that broke, or took no step, is refused."""
    broken = climbed.stopped if climbed.stopped and climbed.stopped.startswith("non_finite") else None
    if broken or not climbed.steps:
        return Outcome(0.0, measure_at(1.0), (broken or climbed.stopped or "no_step",))
    return backtrack(measure_at, limits)


def _between(before: State, after: State, scale: float) -> State:
    """before + scale (after - before)."""
    return {name: before[name] + scale * (after[name] - before[name]) for name in before}
