"""Which credit rule the agent file's `training.credit` names, and the baseline that the rule compares with.

Invariant: an episode is compared with other episodes only, so every rule here works with one episode per task.
E episodes, H turns, N turns of the batch, R turns of the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from feedback.training_section import Training
from online_trainer.baseline import turn_index_means
from online_trainer.credit.gae import Gae
from online_trainer.credit.groups import state_means
from online_trainer.credit.levels import TwoLevels
from online_trainer.credit.monte_carlo import MonteCarlo
from online_trainer.credit.protocol import Credit
from online_trainer.credit.proxmo import neighbour_weights, similarity, success_weight
from online_trainer.lessons import Lesson, Replay
from online_trainer.returns import Returns


@dataclass(frozen=True)
class Compared:
    """What other episodes say about a batch: a baseline per turn, whether any of their turns was like it, and w of each
    episode (0 where its outcome is unknown)."""

    value_N: torch.Tensor
    found_N: torch.Tensor
    weight_E: torch.Tensor


def compare(
    batch: Sequence[Lesson], replay: Replay, known: Returns | None, *, training: Training
) -> Compared | None:
    """The comparison that a two-level rule needs; None where the rule takes the critic's baseline."""
    if training.credit not in ("proxmo", "groups"):
        return None
    turns = sum(len(lesson.ends) for lesson in batch)
    if known is None:
        return Compared(torch.zeros(turns), torch.ones(turns, dtype=torch.bool), torch.zeros(len(batch)))
    if training.credit == "groups":
        return _by_state(batch, known)
    return _by_proximity(batch, replay, known, training=training)


def rule_for(
    training: Training, *, lam: float, compared: Compared | None, work_EH: torch.Tensor, mask_EH: torch.Tensor
) -> Credit:
    """The rule by name; `lam` is what suits the baseline in use."""
    if compared is not None:
        found_EH = torch.zeros_like(mask_EH)
        found_EH[mask_EH] = compared.found_N
        omega = training.proxmo.omega
        return TwoLevels(training.turn.gamma, omega, compared.weight_E, work_EH, found_EH)
    if training.credit == "gae":
        return Gae(training.turn.gamma, lam)
    return MonteCarlo(training.turn.gamma)


def index_means(batch: Sequence[Lesson], known: Returns) -> torch.Tensor:
    """value_N: the replay mean of each turn's index."""
    return turn_index_means(
        torch.tensor([number for lesson in batch for number in range(len(lesson.ends))]),
        _episodes(batch),
        replay_index_R=known.index_N,
        replay_return_R=known.return_N,
        replay_episodes_R=known.episodes,
    )


def proximity_weights(
    batch: Sequence[Lesson], replay: Replay, known: Returns, *, training: Training
) -> torch.Tensor:
    """W [N, R] over the newest turns of the replay."""
    newest = slice(-training.proxmo.turns, None)
    state_NF = torch.cat([replay.features[lesson.episode_id].state_TF for lesson in batch]).float()
    number = {name: place for place, name in enumerate(dict.fromkeys([*known.episodes, *_episodes(batch)]))}
    own_N = torch.tensor([number[name] for name in _episodes(batch)])
    other_R = torch.tensor([number[name] for name in known.episodes[newest]])
    return neighbour_weights(
        similarity(state_NF, known.state_NF[newest]),
        allowed_NR=own_N[:, None] != other_R,
        tau=training.proxmo.psa_tau,
    )


def proximity_values(
    batch: Sequence[Lesson], replay: Replay, known: Returns, *, training: Training
) -> torch.Tensor:
    """value_N: what turns in like states of other episodes returned."""
    weight_NR = proximity_weights(batch, replay, known, training=training)
    return weight_NR @ known.return_N[-training.proxmo.turns :]


def _by_proximity(batch: Sequence[Lesson], replay: Replay, known: Returns, *, training: Training) -> Compared:
    settings = training.proxmo
    weight_NR = proximity_weights(batch, replay, known, training=training)
    newest = slice(-settings.turns, None)
    first_ER = weight_NR[_first_turns(batch)] * (known.index_N[newest] == 0)  # an episode counts once
    won_R = torch.tensor([_won(replay.lessons[name]) for name in known.episodes[newest]])
    rate_E = (first_ER * won_R).sum(1) / first_ER.sum(1).clamp(min=1e-12)
    weight_E = success_weight(
        torch.tensor([_won(lesson) for lesson in batch]),
        rate_E.clamp(0.0, 1.0),
        alpha=settings.psc_alpha,
        most=settings.psc_max,
    )
    return Compared(
        weight_NR @ known.return_N[newest],
        torch.ones(len(weight_NR), dtype=torch.bool),
        torch.where(_has_outcome(batch), weight_E, 0.0),
    )


def _by_state(batch: Sequence[Lesson], known: Returns) -> Compared:
    """The mean of the same state, of the turn's index where nobody else was in it."""
    mean_N, found_N = state_means(
        [state for lesson in batch for state in lesson.states],
        _episodes(batch),
        replay_states_R=known.states,
        replay_episodes_R=known.episodes,
        replay_return_R=known.return_N,
    )
    value_N = torch.where(found_N, mean_N, index_means(batch, known))
    return Compared(value_N, found_N, _has_outcome(batch).float())


def _episodes(batch: Sequence[Lesson]) -> list[str]:
    return [lesson.episode_id for lesson in batch for _ in lesson.ends]


def _first_turns(batch: Sequence[Lesson]) -> list[int]:
    starts = [0]
    for lesson in batch:
        starts.append(starts[-1] + len(lesson.ends))
    return starts[:-1]


def _has_outcome(batch: Sequence[Lesson]) -> torch.Tensor:
    return torch.tensor([lesson.outcome_reward is not None for lesson in batch])


def _won(lesson: Lesson) -> bool:
    return lesson.outcome_reward is not None and lesson.outcome_reward > 0
