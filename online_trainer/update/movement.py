"""How far a finished climb moved the policy, measured on the batch under the weights in force.

Invariant: half of a batch decides only where the other half could hardly say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from feedback.training_section import Training
from online_trainer.policy import Policy
from online_trainer.update.batch import Batch, pack, token_positions
from online_trainer.update.climb import Climb, Goal
from online_trainer.update.measured_gates import Opinions
from online_trainer.update.trust import Limits, Measures, Moves, measure, moves


def measure_batch(
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
