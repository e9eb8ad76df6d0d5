"""Gates that compare new with old on the same texts: the gold judge on the batch's answers, log-probabilities on a probe.

Invariant: a gate closes only when the one-sided 95 % bound of new - old lies beyond its limit (design 13), so noise never
closes it; and it costs no forward pass over the batch. M turns of the batch, N values, C clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_trainer.update.ppo import LOG_RATIO_LIMIT

NORMAL = 1.6448536269514722
FEWEST = 3
"""Clusters below which nothing is known of the spread."""


@dataclass(frozen=True)
class Change:
    """new - old: the mean and the upper end of its one-sided 95 % interval. All 0 where too little was compared."""

    mean: float = 0.0
    upper: float = 0.0
    count: int = 0

    def is_beyond(self, drop: float) -> bool:
        """Whether even the most hopeful reading has lost more than `drop`."""
        return self.upper < -drop


def change(value_N: Tensor, cluster_N: Tensor) -> Change:
    """Of paired differences; those of one cluster (an episode, a conversation) are not independent."""
    _, index_N = torch.unique(cluster_N, return_inverse=True)
    clusters = int(index_N.max()) + 1 if len(index_N) else 0
    if clusters < FEWEST or not bool(torch.isfinite(value_N).all()):
        return Change()
    value_N = value_N.double()
    mean = value_N.mean()
    left_C = torch.zeros(clusters, dtype=torch.float64).index_add(0, index_N, value_N - mean)
    error = math.sqrt(clusters / (clusters - 1) * float(left_C.square().sum())) / len(value_N)
    return Change(float(mean), float(mean) + quantile(clusters - 1) * error, len(value_N))


def quantile(degrees: int) -> float:
    """The 95 % quantile of Student's t (Cornish-Fisher; within .01 from 3 degrees on)."""
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


@dataclass(frozen=True)
class Opinions:
    """What the gold judge and the policy's own judge think of each turn (NaN: nothing), and the turn's episode.

    The policy was never trained on the gold judge's opinion.
    """

    gold_M: Tensor
    judge_M: Tensor
    episode_M: Tensor


def gain(score_M: Tensor, *, move_N: Tensor, weight_N: Tensor, turn_N: Tensor, episode_M: Tensor) -> Change:
    """E_new[score] - E_old[score] over the turns that were measured, in standard deviations of the scores.

    An answer that became exp(sum of moves) times as likely counts that much more; `weight_N` = min(old / mu, cap) makes
    what mu sampled stand for `old`. The mean score is taken off, which changes no expectation.
    """
    turns = len(score_M)
    zero_M = torch.zeros(turns, dtype=torch.float64)
    move_M = zero_M.index_add(0, turn_N, move_N.double()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weight_M = zero_M.index_add(0, turn_N, weight_N.double().log()).clamp(max=math.log(2.0)).exp()
    known_M = torch.isfinite(score_M) & (torch.bincount(turn_N, minlength=turns) > 0)
    score_K = score_M[known_M].double()
    spread = float(score_K.std(correction=0)) if len(score_K) else 0.0
    if spread < 1e-9:
        return Change()
    value_K = weight_M[known_M] * torch.expm1(move_M[known_M]) * (score_K - score_K.mean()) / spread
    return change(value_K, episode_M[known_M])


def probe_change(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> Change:
    """Log-probability per token of fixed conversations, new - old in nats."""
    gaps = [
        torch.tensor(now, dtype=torch.float64) - torch.tensor(then, dtype=torch.float64)
        for now, then in zip(new, old, strict=True)
    ]
    places = [torch.full((len(each),), number) for number, each in enumerate(gaps)]
    return change(torch.cat(gaps), torch.cat(places)) if gaps else Change()


def probe_fault(found: Change, *, drop: float | None) -> tuple[str, ...]:
    """Why the probe refuses: perplexity on fixed texts rose by more than `drop` (a share); empty where it does not."""
    if drop is None or not found.is_beyond(limit := math.log1p(drop)):
        return ()
    return (f"probe {found.upper:.3g} < {-limit:.3g}",)
