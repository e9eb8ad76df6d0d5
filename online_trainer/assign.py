"""The critic's verb and the credit's verb: from priced lessons to one advantage per turn.

Invariant: an episode whose outcome nobody knows gets the baseline as its outcome, so that not being rated is neither good
nor bad. E episodes, H turns, N turns end to end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.agent_file import Weights
from feedback.training_section import CriticSettings, Training
from online_trainer.baseline import Baseline, Explained, choose_baseline, held_out_explained
from online_trainer.credit.scale import RunningScale, centred, scaled
from online_trainer.critics.value import Critic
from online_trainer.lessons import Lesson, Replay
from online_trainer.returns import Returns, before_outcome, farms, padded, potential_of, reward_of
from online_trainer.rules import compare, index_means, proximity_values, rule_for

BATCH = 256
MOSTLY_CRITIC = 0.5


@dataclass(frozen=True)
class Assigned:
    """Advantage and reward of every turn of the batch's episodes, and how they came about."""

    advantage: Mapping[str, tuple[float, ...]]
    reward: Mapping[str, tuple[float, ...]]
    scale: RunningScale
    explained: Explained
    baseline: Baseline
    farmed: int
    critic_loss: float = 0.0

    def carries_signal(self, episode_id: str) -> bool:
        return any(value != 0.0 for value in self.advantage[episode_id])

    def measures(self) -> dict[str, float]:
        values = [value for turns in self.advantage.values() for value in turns]
        mean = sum(values) / len(values) if values else 0.0
        return {
            "critic/explained_variance": self.explained.value,
            "critic/explained_variance_lower": max(self.explained.lower, -10.0),
            **({"critic_loss": self.critic_loss} if math.isfinite(self.critic_loss) else {}),
            "critic/turns": float(self.explained.turns),
            "critic/lambda": self.baseline.lam,
            "critic/replay_share": self.baseline.replay_share,
            "advantage/mean": mean,
            "advantage/scale": self.scale.value,
            "shaping/farmed": float(self.farmed),
        }


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
    compared = compare(batch, replay, known, training=training)
    baseline = (
        _baseline(batch, replay, critic, known, explained=explained, training=training)
        if compared is None
        else Baseline(compared.value_N, 1.0, 1.0)
    )
    priced = [
        reward_of(lesson, rho.get(lesson.episode_id, {}), weights=weights, training=training)
        for lesson in batch
    ]
    gamma = training.turn.gamma
    reward_EH, mask_EH = padded(priced)
    potential_EH, _ = padded([potential_of(lesson, weights=weights, gamma=gamma) for lesson in batch])
    value_EH = torch.zeros_like(reward_EH)
    value_EH[mask_EH] = baseline.value_N
    work_EH = before_outcome(batch, mask_EH)
    value_EH = torch.where(work_EH, value_EH, 0.0 - potential_EH)
    reward_EH, value_EH = outcome_of_the_silent(
        batch, reward_EH, value_EH, potential_EH=potential_EH, trusted=baseline.replay_share < MOSTLY_CRITIC
    )
    rule = rule_for(training, lam=baseline.lam, compared=compared, work_EH=work_EH, mask_EH=mask_EH)
    estimate = rule(reward_EH, value_EH, mask_EH=mask_EH, bootstrap_E=torch.zeros(len(batch)))
    raw_EH = estimate.advantage_EH
    if training.turn.adv_norm == "mean_std":
        raw_EH = centred(raw_EH)
    signal_E = (raw_EH != 0).any(dim=1)
    scale = scale.after(raw_EH[signal_E][mask_EH[signal_E]])
    advantage_EH = scaled(raw_EH, scale, clip=training.turn.adv_clip)
    return Assigned(
        advantage=_by_episode(batch, advantage_EH),
        reward={lesson.episode_id: turns for lesson, turns in zip(batch, priced, strict=True)},
        scale=scale,
        explained=explained,
        baseline=baseline,
        farmed=sum(farms(lesson, gamma=gamma) for lesson in batch),
    )


def outcome_of_the_silent(
    batch: Sequence[Lesson],
    reward_EH: torch.Tensor,
    value_EH: torch.Tensor,
    *,
    potential_EH: torch.Tensor,
    trusted: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The missing outcome is the baseline: V of its turn where V is mostly the critic's, else no baseline and no outcome.

    A replay mean knows only the turn's index; differences of it would credit an episode's length. Shaping stays out of it:
    -Phi is the value of nothing but shaping, so that progress alone credits no turn either.
    """
    silent_E = torch.tensor([lesson.outcome_reward is None for lesson in batch])
    if not trusted:
        return reward_EH, torch.where(silent_E[:, None], 0.0 - potential_EH, value_EH)
    reward_EH = reward_EH.clone()
    end_E = torch.tensor([lesson.outcome_turn for lesson in batch])[silent_E]
    rows_E = torch.arange(len(batch))[silent_E]
    reward_EH[rows_E, end_E] += value_EH[rows_E, end_E] + potential_EH[rows_E, end_E]
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
    if known is None:
        return Baseline(torch.zeros_like(critic_N), 1.0, 1.0)
    replay_N = (
        proximity_values(batch, replay, known, training=training)
        if settings.fallback == "proximity"
        else index_means(batch, known)
    )
    return choose_baseline(critic_N, replay_N, explained=explained, lam=training.turn.lam, settings=settings)


def _by_episode(batch: Sequence[Lesson], value_EH: torch.Tensor) -> dict[str, tuple[float, ...]]:
    return {
        lesson.episode_id: tuple(row[: len(lesson.ends)])
        for lesson, row in zip(batch, value_EH.tolist(), strict=True)
    }
