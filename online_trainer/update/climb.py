"""The optimizer steps of one update: PPO on minibatches until they are done or something moved too far.

Invariant: a minibatch's gradient is that of the whole update's mean, however it is cut into passes. N trained tokens,
P positions of one pass, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from feedback.training_section import Ppo, Training
from online_trainer.policy import Policy
from online_trainer.update import ppo
from online_trainer.update.batch import Batch, pack, token_positions
from online_trainer.update.kl import k2_loss, k3
from online_trainer.update.look import Look
from online_trainer.update.ppo import RatioStatistics, ratio_statistics
from online_trainer.update.trust import Limits, should_stop, wild_gradient


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


def climb(
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
    count = steps_per_epoch(batch, training.ppo)
    for _ in range(training.ppo.epochs):
        order = torch.randperm(len(episodes), generator=generator).tolist()
        for first in range(count):
            steps.append([row for at in order[first::count] for row in of[episodes[at]]])
    return steps


def steps_per_epoch(batch: Batch, settings: Ppo) -> int:
    """Minibatches are of whole episodes, so there are no more of them than episodes."""
    return min(settings.minibatches, len({row.episode_id for row in batch.rows}))


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
    total = max(1.0, float(goal.used_N.sum()) / steps_per_epoch(batch, settings))
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
