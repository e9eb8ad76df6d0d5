"""Baselines from a group of answers to one task. Live traffic has groups of one; these serve comparisons offline.

N answers of one group.
"""

from torch import Tensor

EPSILON = 1e-12


def rloo(reward_N: Tensor) -> Tensor:
    """r minus the mean of the others = N/(N-1) (r - mean)."""
    size = reward_N.shape[0]
    return (reward_N - reward_N.mean()) * size / (size - 1)


def grpo(reward_N: Tensor) -> Tensor:
    """(r - mean) / std with the unbiased std; zero where all rewards are equal."""
    centred_N = reward_N - reward_N.mean()
    return centred_N / reward_N.std(correction=1).clamp(min=EPSILON)


def dr_grpo(reward_N: Tensor) -> Tensor:
    """r - mean, not divided."""
    return reward_N - reward_N.mean()
