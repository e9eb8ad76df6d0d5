"""What a turn was worth against what might have stood in its place: for audits, where alternatives were really tried.

Invariant: nothing here feeds the policy's update; live traffic plays a turn once. N states, A alternatives, H turns.
"""

from collections.abc import Mapping
from itertools import combinations
from math import factorial

from torch import Tensor


def coma(value_NA: Tensor, policy_NA: Tensor) -> Tensor:
    """Q(a) - sum_a' pi(a') Q(a') of every alternative (Foerster 2018); its mean under the policy is 0."""
    return value_NA - (policy_NA * value_NA).sum(dim=-1, keepdim=True)


def shapley(worth: Mapping[frozenset[int], float], *, turns: int) -> list[float]:
    """Each turn's mean contribution over all orders of joining. `worth` names every set of turns; the empty one is 0."""
    return [_contribution(worth, turn, turns) for turn in range(turns)]


def _contribution(worth: Mapping[frozenset[int], float], turn: int, turns: int) -> float:
    others = [other for other in range(turns) if other != turn]
    total = 0.0
    for size in range(turns):
        share = factorial(size) * factorial(turns - size - 1) / factorial(turns)
        for chosen in combinations(others, size):
            without = frozenset(chosen)
            total += share * (worth[without | {turn}] - worth.get(without, 0.0))
    return total


def projected(credit_H: Tensor, total: float) -> Tensor:
    """Credits moved equally so that they add up to the return (SPA-RL, arXiv 2505.20732)."""
    return credit_H + (total - credit_H.sum()) / len(credit_H)


def sum_loss(credit_H: Tensor, total: float) -> Tensor:
    """(sum of credits - return)^2: what teaches a progress estimator to add up (SPA-RL)."""
    return (credit_H.sum() - total).square()
