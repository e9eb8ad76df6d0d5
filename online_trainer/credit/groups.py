"""Baselines from a group: answers to one task, or turns in exactly one state (GiGPO, arXiv 2505.10978).

Live traffic answers a task once, so the group of a state is drawn from the replay, other episodes only. Dialogues seldom
repeat to the letter: a state that nobody else was in has no baseline, and says so. N answers of one group.
"""

from collections.abc import Sequence

import torch
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


def state_means(
    states_N: Sequence[str],
    episodes_N: Sequence[str],
    *,
    replay_states_R: Sequence[str],
    replay_episodes_R: Sequence[str],
    replay_return_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """(mean_N, found_N): mean replay return over turns of OTHER episodes in the same state; 0 and False where none was."""
    total: dict[str, tuple[float, int]] = {}
    own: dict[tuple[str, str], tuple[float, int]] = {}
    for state, episode, value in zip(
        replay_states_R, replay_episodes_R, replay_return_R.tolist(), strict=True
    ):
        total[state] = _plus(total.get(state), value)
        own[state, episode] = _plus(own.get((state, episode)), value)
    means, found = [], []
    for state, episode in zip(states_N, episodes_N, strict=True):
        (everyone, count), (mine, few) = total.get(state, (0.0, 0)), own.get((state, episode), (0.0, 0))
        found.append(count > few)
        means.append((everyone - mine) / (count - few) if count > few else 0.0)
    return torch.tensor(means, dtype=replay_return_R.dtype), torch.tensor(found, dtype=torch.bool)


def _plus(known: tuple[float, int] | None, value: float) -> tuple[float, int]:
    return (value, 1) if known is None else (known[0] + value, known[1] + 1)
