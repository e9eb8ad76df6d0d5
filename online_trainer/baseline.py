"""What is subtracted from a return: the replay mean of the turn index until the critic has shown that it knows more.

Invariant: explained variance chooses the baseline and never stops an update (design 13). N turns asked about, R turns
of the replay; an episode's own returns never enter its own baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feedback.training_section import CriticSettings

PRIOR_TURNS = 8.0
RESAMPLES = 400
CONFIDENCE = 0.95


def explained_variance(value_N: Tensor, return_N: Tensor) -> float:
    """1 - Var(G - V) / Var(G); 0 where the returns do not vary, since then nothing was explained."""
    spread = float(return_N.var(correction=0)) if len(return_N) else 0.0
    return 1.0 - float((return_N - value_N).var(correction=0)) / spread if spread > 0.0 else 0.0


@dataclass(frozen=True)
class Explained:
    """Explained variance of held-out predictions, its one-sided 95 % lower bound, and over how many turns."""

    value: float
    lower: float
    turns: int


def held_out_explained(
    value_N: Tensor, return_N: Tensor, episodes: Sequence[str], *, generator: torch.Generator
) -> Explained:
    """Bootstrap over whole episodes (turns of one episode are not independent).

    `value_N` must be held-out predictions: `Critic.values` are, since an episode's own fold never learned from it.
    """
    value_N, return_N = value_N.double(), return_N.double()
    names = {name: i for i, name in enumerate(dict.fromkeys(episodes))}
    if len(names) < 2:
        return Explained(explained_variance(value_N, return_N), -torch.inf, len(return_N))
    sums_ES = _episode_sums(value_N, return_N, torch.tensor([names[e] for e in episodes]), len(names))
    drawn = [_draw(sums_ES, generator) for _ in range(RESAMPLES)]
    lower = float(torch.tensor(drawn).quantile(1.0 - CONFIDENCE))
    return Explained(explained_variance(value_N, return_N), lower, len(return_N))


def _episode_sums(value_N: Tensor, return_N: Tensor, episode_N: Tensor, episodes: int) -> Tensor:
    """sums_ES: per episode the count, sum and sum of squares of returns and of residuals."""
    left_N = return_N - value_N
    column_NS = torch.stack([torch.ones_like(left_N), return_N, return_N**2, left_N, left_N**2], dim=1)
    return torch.zeros(episodes, 5, dtype=torch.float64).index_add(0, episode_N, column_NS)


def _draw(sums_ES: Tensor, generator: torch.Generator) -> float:
    """Explained variance of one resample of the episodes."""
    episodes = len(sums_ES)
    times_E = torch.bincount(torch.randint(episodes, (episodes,), generator=generator), minlength=episodes)
    count, g, g2, left, left2 = (times_E.double() @ sums_ES).tolist()
    spread = g2 / count - (g / count) ** 2
    return 1.0 - (left2 / count - (left / count) ** 2) / spread if spread > 1e-12 else 0.0


def turn_index_means(
    index_N: Tensor,
    episodes_N: Sequence[str],
    *,
    replay_index_R: Tensor,
    replay_return_R: Tensor,
    replay_episodes_R: Sequence[str],
) -> Tensor:
    """baseline_N: mean replay return at the same turn index over OTHER episodes, drawn to their overall mean by
    `PRIOR_TURNS` turns so that a rarely reached index is not noise. 0 when there is no other episode.
    """
    own: dict[str, list[int]] = {}
    for position, episode in enumerate(replay_episodes_R):
        own.setdefault(episode, []).append(position)
    total, count = float(replay_return_R.sum()), len(replay_return_R)
    longest = int(max([*replay_index_R.tolist(), *index_N.tolist(), 0])) + 1
    zero_H = torch.zeros(longest, dtype=replay_return_R.dtype)
    sum_H = zero_H.index_add(0, replay_index_R, replay_return_R)
    count_H = zero_H.index_add(0, replay_index_R, torch.ones_like(replay_return_R))
    baselines = []
    for index, episode in zip(index_N.tolist(), episodes_N, strict=True):
        mine = own.get(episode, [])
        here = [p for p in mine if int(replay_index_R[p]) == index]
        others = count - len(mine)
        overall = (total - float(replay_return_R[mine].sum())) / others if others else 0.0
        at_sum = float(sum_H[index]) - float(replay_return_R[here].sum())
        at_count = float(count_H[index]) - len(here)
        baselines.append((at_sum + PRIOR_TURNS * overall) / (at_count + PRIOR_TURNS))
    return torch.tensor(baselines, dtype=replay_return_R.dtype)


@dataclass(frozen=True)
class Baseline:
    """The value of each turn, the lambda that suits it, and the share of it that is the replay mean."""

    value_N: Tensor
    lam: float
    replay_share: float


def choose_baseline(
    critic_N: Tensor, replay_N: Tensor, *, explained: Explained, lam: float, settings: CriticSettings
) -> Baseline:
    """Replay mean with lambda 1 until the lower bound of EV is above 0 on enough turns; then V = (1-k) critic + k
    replay with k = clip(1 - EV / ev_full, 0, 1) and the actor's lambda."""
    if explained.turns < settings.ev_turns or not explained.lower > 0.0:
        return Baseline(replay_N, 1.0, 1.0)
    share = max(0.0, min(1.0, 1.0 - explained.value / settings.ev_full))
    return Baseline((1.0 - share) * critic_N + share * replay_N, lam, share)
