"""The critic's verb and the credit's verb: from priced lessons to one advantage per turn.

Invariant: an episode whose outcome nobody knows gets the baseline as its outcome, so that not being rated is neither good
nor bad. E episodes, H turns, N turns end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.agent_file import Weights
from feedback.training_section import CriticSettings, Training
from online_trainer.baseline import Baseline, Explained, choose_baseline, held_out_explained, turn_index_means
from online_trainer.credit.gae import Gae
from online_trainer.credit.monte_carlo import MonteCarlo, returns
from online_trainer.credit.protocol import Credit
from online_trainer.credit.scale import RunningScale, scaled
from online_trainer.critics.value import Critic
from online_trainer.lessons import Lesson, Replay, rewards

BATCH = 256
MOSTLY_CRITIC = 0.5


@dataclass(frozen=True)
class Returns:
    """Every turn up to the outcome, of the episodes that have one: its place, its episode, its Monte-Carlo return."""

    index_N: torch.Tensor
    episodes: tuple[str, ...]
    return_N: torch.Tensor
    state_NF: torch.Tensor


@dataclass(frozen=True)
class Assigned:
    """Advantage and reward of every turn of the batch's episodes, and how they came about."""

    advantage: Mapping[str, tuple[float, ...]]
    reward: Mapping[str, tuple[float, ...]]
    scale: RunningScale
    explained: Explained
    baseline: Baseline

    def carries_signal(self, episode_id: str) -> bool:
        return any(value != 0.0 for value in self.advantage[episode_id])

    def measures(self) -> dict[str, float]:
        values = [value for turns in self.advantage.values() for value in turns]
        mean = sum(values) / len(values) if values else 0.0
        return {
            "critic/explained_variance": self.explained.value,
            "critic/explained_variance_lower": max(self.explained.lower, -10.0),
            "critic/turns": float(self.explained.turns),
            "critic/lambda": self.baseline.lam,
            "critic/replay_share": self.baseline.replay_share,
            "advantage/mean": mean,
            "advantage/scale": self.scale.value,
        }


def known_returns(replay: Replay, *, weights: Weights, training: Training) -> Returns | None:
    """What the critic learns from; None while no outcome is known."""
    lessons = replay.known()
    if not lessons:
        return None
    priced = [rewards(lesson, {}, weights=weights, clip=training.turn.reward_clip) for lesson in lessons]
    reward_EH, mask_EH = _padded(priced)
    bootstrap_E = torch.zeros(len(lessons))
    return_EH = returns(reward_EH, mask_EH=mask_EH, bootstrap_E=bootstrap_E, gamma=training.turn.gamma)
    work_EH = _before_outcome(lessons, mask_EH)
    return Returns(
        index_N=torch.arange(mask_EH.shape[1]).expand_as(mask_EH)[work_EH],
        episodes=tuple(lesson.episode_id for lesson in lessons for _ in range(lesson.outcome_turn + 1)),
        return_N=return_EH[work_EH],
        state_NF=torch.cat(
            [replay.features[lesson.episode_id].state_TF[: lesson.outcome_turn + 1] for lesson in lessons]
        ).float(),
    )


def _before_outcome(lessons: Sequence[Lesson], mask_EH: torch.Tensor) -> torch.Tensor:
    """Turns up to the one where the outcome lands: a courtesy after it has no outcome to expect."""
    end_E = torch.tensor([lesson.outcome_turn for lesson in lessons])
    return mask_EH & (torch.arange(mask_EH.shape[1]) <= end_E[:, None])


def train_critic(critic: Critic, known: Returns | None, *, steps: int, generator: torch.Generator) -> float:
    """Monte-Carlo regression: half of each minibatch from the newest turns, half from all. Returns the mean loss."""
    if known is None or not steps:
        return 0.0
    total, losses = len(known.return_N), 0.0
    newest = max(1, total // 4)
    for _ in range(steps):
        late_N = total - 1 - torch.randint(newest, (BATCH // 2,), generator=generator)
        any_N = torch.randint(total, (BATCH // 2,), generator=generator)
        drawn_N = torch.cat([late_N, any_N])
        episodes = [known.episodes[at] for at in drawn_N.tolist()]
        losses += critic.learn(known.state_NF[drawn_N], known.return_N[drawn_N], episode_ids=episodes)
    return losses / steps


def assign(
    batch: Sequence[Lesson],
    replay: Replay,
    critic: Critic,
    known: Returns | None,
    rho: Mapping[str, Mapping[int, float]],
    *,
    weights: Weights,
    training: Training,
    scale: RunningScale,
    generator: torch.Generator,
) -> Assigned:
    """Baseline, credit rule, scale: one advantage per turn of the batch."""
    explained = _explained(critic, known, generator=generator)
    baseline = _baseline(batch, replay, critic, known, explained=explained, training=training)
    priced = [
        rewards(lesson, rho.get(lesson.episode_id, {}), weights=weights, clip=training.turn.reward_clip)
        for lesson in batch
    ]
    reward_EH, mask_EH = _padded(priced)
    value_EH = torch.zeros_like(reward_EH)
    value_EH[mask_EH] = baseline.value_N
    value_EH = torch.where(_before_outcome(batch, mask_EH), value_EH, 0.0)
    reward_EH, value_EH = outcome_of_the_silent(
        batch, reward_EH, value_EH, trusted=baseline.replay_share < MOSTLY_CRITIC
    )
    rule: Credit = MonteCarlo(training.turn.gamma)
    if training.credit == "gae":
        rule = Gae(training.turn.gamma, baseline.lam)
    estimate = rule(reward_EH, value_EH, mask_EH=mask_EH, bootstrap_E=torch.zeros(len(batch)))
    signal_E = (estimate.advantage_EH != 0).any(dim=1)
    scale = scale.after(estimate.advantage_EH[signal_E][mask_EH[signal_E]])
    advantage_EH = scaled(estimate.advantage_EH, scale, clip=training.turn.adv_clip)
    return Assigned(
        advantage=_by_episode(batch, advantage_EH),
        reward={lesson.episode_id: turns for lesson, turns in zip(batch, priced, strict=True)},
        scale=scale,
        explained=explained,
        baseline=baseline,
    )


def outcome_of_the_silent(
    batch: Sequence[Lesson],
    reward_EH: torch.Tensor,
    value_EH: torch.Tensor,
    *,
    trusted: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The missing outcome is the baseline: V of its turn where V is mostly the critic's, else no baseline and no outcome.

    A replay mean knows only the turn's index; differences of it would credit an episode's length.
    """
    silent_E = torch.tensor([lesson.outcome_reward is None for lesson in batch])
    if not trusted:
        return reward_EH, torch.where(silent_E[:, None], 0.0, value_EH)
    reward_EH = reward_EH.clone()
    end_E = torch.tensor([lesson.outcome_turn for lesson in batch])[silent_E]
    rows_E = torch.arange(len(batch))[silent_E]
    reward_EH[rows_E, end_E] += value_EH[rows_E, end_E]
    return reward_EH, value_EH


def _explained(critic: Critic, known: Returns | None, *, generator: torch.Generator) -> Explained:
    if known is None:
        return Explained(0.0, -torch.inf, 0)
    value_N = critic.values(known.state_NF, episode_ids=known.episodes)
    return held_out_explained(value_N, known.return_N, known.episodes, generator=generator)


def _baseline(
    batch: Sequence[Lesson],
    replay: Replay,
    critic: Critic,
    known: Returns | None,
    *,
    explained: Explained,
    training: Training,
) -> Baseline:
    settings: CriticSettings = training.critic
    episodes = [lesson.episode_id for lesson in batch for _ in lesson.ends]
    state_NF = torch.cat([replay.features[lesson.episode_id].state_TF for lesson in batch]).float()
    critic_N = critic.values(state_NF, episode_ids=episodes)
    index_N = torch.tensor([number for lesson in batch for number in range(len(lesson.ends))])
    if known is None:
        return Baseline(torch.zeros_like(critic_N), 1.0, 1.0)
    replay_N = turn_index_means(
        index_N,
        episodes,
        replay_index_R=known.index_N,
        replay_return_R=known.return_N,
        replay_episodes_R=known.episodes,
    )
    return choose_baseline(critic_N, replay_N, explained=explained, lam=training.turn.lam, settings=settings)


def _padded(turns: Sequence[Sequence[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[E, H] of the given values and its mask."""
    longest = max(len(values) for values in turns)
    value_EH = torch.zeros((len(turns), longest))
    mask_EH = torch.zeros((len(turns), longest), dtype=torch.bool)
    for number, values in enumerate(turns):
        value_EH[number, : len(values)] = torch.tensor(values)
        mask_EH[number, : len(values)] = True
    return value_EH, mask_EH


def _by_episode(batch: Sequence[Lesson], value_EH: torch.Tensor) -> dict[str, tuple[float, ...]]:
    return {
        lesson.episode_id: tuple(row[: len(lesson.ends)])
        for lesson, row in zip(batch, value_EH.tolist(), strict=True)
    }
