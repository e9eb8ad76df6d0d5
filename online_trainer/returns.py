"""What is known of each turn: its Monte-Carlo return, up to the outcome, of every episode that has one.

Invariant: only turns up to the outcome are here; a courtesy after it has no outcome to expect. E episodes, H turns, N turns
end to end, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.agent_file import Weights
from feedback.training_section import Training
from online_trainer.credit.monte_carlo import returns
from online_trainer.credit.shaping import is_farmed, potentials
from online_trainer.lessons import Lesson, Replay, rewards


@dataclass(frozen=True)
class Returns:
    """Its place, its episode, its exact state, its return and what the critic sees of it; oldest first."""

    index_N: torch.Tensor
    episodes: tuple[str, ...]
    states: tuple[str, ...]
    return_N: torch.Tensor
    state_NF: torch.Tensor


def known_returns(replay: Replay, *, weights: Weights, training: Training) -> Returns | None:
    """What the critic learns from; None while no outcome is known."""
    lessons = replay.known()
    if not lessons:
        return None
    priced = [reward_of(lesson, {}, weights=weights, training=training) for lesson in lessons]
    reward_EH, mask_EH = padded(priced)
    bootstrap_E = torch.zeros(len(lessons))
    return_EH = returns(reward_EH, mask_EH=mask_EH, bootstrap_E=bootstrap_E, gamma=training.turn.gamma)
    work_EH = before_outcome(lessons, mask_EH)
    return Returns(
        index_N=torch.arange(mask_EH.shape[1]).expand_as(mask_EH)[work_EH],
        episodes=tuple(lesson.episode_id for lesson in lessons for _ in range(lesson.outcome_turn + 1)),
        states=tuple(state for lesson in lessons for state in lesson.states[: lesson.outcome_turn + 1]),
        return_N=return_EH[work_EH],
        state_NF=torch.cat(
            [replay.features[lesson.episode_id].state_TF[: lesson.outcome_turn + 1] for lesson in lessons]
        ).float(),
    )


def reward_of(
    lesson: Lesson, rho: Mapping[int, float], *, weights: Weights, training: Training
) -> tuple[float, ...]:
    """Reward of each turn; progress that is no shaping is left out."""
    if farms(lesson, gamma=training.turn.gamma):
        weights = weights.model_copy(update={"progress": 0.0})
    return rewards(lesson, rho, weights=weights, clip=training.turn.reward_clip)


def farms(lesson: Lesson, *, gamma: float) -> bool:
    """Whether the episode was promised progress that sub-goals cannot have made."""
    return is_farmed([channels.progress for channels in lesson.channels], gamma=gamma)


def potential_of(lesson: Lesson, *, weights: Weights, gamma: float) -> tuple[float, ...]:
    """weight * Phi before each turn, as far as it is in the lesson's rewards."""
    if farms(lesson, gamma=gamma):
        return (0.0,) * len(lesson.channels)
    found = potentials([channels.progress for channels in lesson.channels], gamma=gamma)
    return tuple(weights.progress * phi for phi in found)


def before_outcome(lessons: Sequence[Lesson], mask_EH: torch.Tensor) -> torch.Tensor:
    """Turns up to the one where the outcome lands: a courtesy after it has no outcome to expect."""
    end_E = torch.tensor([lesson.outcome_turn for lesson in lessons])
    return mask_EH & (torch.arange(mask_EH.shape[1]) <= end_E[:, None])


def padded(turns: Sequence[Sequence[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[E, H] of the given values and its mask."""
    longest = max(len(values) for values in turns)
    value_EH = torch.zeros((len(turns), longest))
    mask_EH = torch.zeros((len(turns), longest), dtype=torch.bool)
    for number, values in enumerate(turns):
        value_EH[number, : len(values)] = torch.tensor(values)
        mask_EH[number, : len(values)] = True
    return value_EH, mask_EH
