"""KeyTurn-T: an episode of T two-way choices of which two decide. Small enough that true credit is enumerated.

Invariant: every expectation here is exact, a sum over all episodes with their probabilities, never a sample.
Shapes: E episodes (every sequence of choices with either ending), H turns. The policy is uniform; gamma is 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHANCES = (0.1, 0.3, 0.9)


@dataclass(frozen=True)
class KeyTurn:
    """`keys` are the two turns that matter; success has the chance `CHANCES[number of good keys]`."""

    turns: int = 6
    keys: tuple[int, int] = (1, 4)

    @property
    def key_H(self) -> Tensor:
        """True at the two turns that matter."""
        return torch.tensor([turn in self.keys for turn in range(self.turns)])


@dataclass(frozen=True)
class Episodes:
    """Every episode: its choices (True is the good one), its reward at the end, and how likely it is."""

    good_EH: Tensor
    reward_EH: Tensor
    probability_E: Tensor

    @property
    def mask_EH(self) -> Tensor:
        """Every turn exists."""
        return torch.ones_like(self.good_EH)


def every_episode(task: KeyTurn) -> Episodes:
    """2^T sequences of choices, each with success and with failure."""
    number_S = torch.arange(2**task.turns)
    good_SH = (number_S[:, None] >> torch.arange(task.turns)) % 2 == 1
    chance_S = expected_success(task, good_SH)[:, -1]
    reward_EH = torch.zeros(2 * len(good_SH), task.turns, dtype=torch.float64)
    reward_EH[: len(good_SH), -1] = 1.0
    probability_E = torch.cat([chance_S, 1.0 - chance_S]) / len(good_SH)
    return Episodes(good_SH.repeat(2, 1), reward_EH, probability_E)


def expected_success(task: KeyTurn, good_EH: Tensor) -> Tensor:
    """P(success | the first t choices), for t = 0..T: [E, T + 1]. Its steps are the true advantages."""
    chance = torch.tensor(CHANCES, dtype=torch.float64)
    halves = (chance[:-1] + chance[1:]) / 2
    open_two = halves.mean()
    columns = [open_two.expand(len(good_EH))]
    for turn in range(1, task.turns + 1):
        decided = [key for key in task.keys if key < turn]
        won_E = good_EH[:, decided].sum(dim=1)
        columns.append(
            [open_two.expand(len(good_EH)), halves[won_E.clamp(max=1)], chance[won_E]][len(decided)]
        )
    return torch.stack(columns, dim=1)


def true_values(task: KeyTurn, good_EH: Tensor) -> Tensor:
    """value_EH: V before each choice, what a perfect critic says."""
    return expected_success(task, good_EH)[:, :-1]


def true_advantages(task: KeyTurn, good_EH: Tensor) -> Tensor:
    """advantage_EH: A* of each choice; zero at every turn that does not matter."""
    return expected_success(task, good_EH).diff(dim=1)
