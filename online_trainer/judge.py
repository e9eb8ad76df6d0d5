"""The reward model's verb: learn every thumb so far from the start, be tried on raters it never met, price what nobody rated.

Invariant: nothing is priced unless the trial passes; a rated answer keeps its rating.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from feedback.training_section import RewardModelSettings
from online_trainer.lessons import Lesson, Replay
from online_trainer.reward_model import Centre, Labels, Pairs, RewardModel, Trial, price
from online_trainer.update.measured_gates import Opinions

BATCH = 128
EPOCHS = 6
MOST_STEPS = 200


@dataclass(frozen=True)
class Judgement:
    """How the trial went, and rho of each priced turn by episode and turn."""

    trial: Trial
    passed: bool
    rho: Mapping[str, Mapping[int, float]]
    centre: Centre
    bias: Mapping[str, float] = field(default_factory=dict)
    views: Mapping[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    """What the gold member and the others think of answers whose raters the gold member never heard, by episode and turn."""

    def opinions(self, turns: Sequence[tuple[str, int]]) -> Opinions | None:
        """Of these turns, for the gold gate; None while the gold member knows too little."""
        if not self.views:
            return None
        nothing = (math.nan, math.nan)
        view_M2 = torch.tensor([self.views.get(turn, nothing) for turn in turns], dtype=torch.float64)
        place = {name: number for number, name in enumerate(dict.fromkeys(episode for episode, _ in turns))}
        episode_M = torch.tensor([place[episode] for episode, _ in turns])
        return Opinions(view_M2[:, 0], view_M2[:, 1], episode_M)

    def measures(self) -> dict[str, float]:
        priced = [value for turns in self.rho.values() for value in turns.values()]
        return {
            "reward_model/agreement": self.trial.agreement,
            "reward_model/labels": float(self.trial.labels),
            "reward_model/pairs": float(self.trial.pairs),
            "reward_model/pair_agreement": self.trial.pair_agreement,
            "reward_model/gold_agreement": self.trial.gold_agreement,
            "reward_model/passed": float(self.passed),
            "reward_model/priced": float(len(priced)),
            "reward_model/mean": sum(priced) / len(priced) if priced else 0.0,
            **self.bias,
        }


def train_judge(
    replay: Replay, *, features: int, settings: RewardModelSettings, seed: int
) -> tuple[RewardModel, Trial]:
    """A new ensemble on all thumbs, earlier ratings, comparisons and corrections; the trial is on thumbs alone."""
    model = RewardModel(features, settings=settings, seed=seed)
    labels, pairs = _labels(replay, thumbs_only=False), preferred(replay)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_steps(len(labels))):
        model.learn(labels.taken(_drawn(len(labels), generator)))
    for _ in range(_steps(len(pairs))):
        model.learn_pairs(pairs.taken(_drawn(len(pairs), generator)))
    thumbs = _labels(replay, thumbs_only=True)
    trial = model.trial(thumbs) if len(thumbs) else Trial(0.5, 0, 1.0)
    return model, replace(
        trial,
        pairs=len(pairs),
        pair_agreement=model.pair_trial(pairs),
        gold_agreement=model.gold_trial(thumbs) if len(thumbs) else 0.5,
    )


def _steps(count: int) -> int:
    return min(MOST_STEPS, EPOCHS * max(1, count // BATCH) + 30) if count else 0


def _drawn(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(count, (min(BATCH, count),), generator=generator)


def judge(
    model: RewardModel,
    trial: Trial,
    replay: Replay,
    asked: Sequence[Lesson],
    *,
    centre: Centre,
    settings: RewardModelSettings,
) -> Judgement:
    """Price the turns that end an interaction and that no rating reaches."""
    turns = [(lesson.episode_id, at) for lesson in asked for at in _unrated(lesson)]
    if not turns:
        return Judgement(trial, trial.passes(settings), {}, centre)
    feature_NG = torch.stack([replay.features[episode].answer_TG[at] for episode, at in turns]).float()
    score_KN = model.scores(feature_NG)
    centre = centre.after(score_KN, kappa=settings.kappa)
    rho: dict[str, dict[int, float]] = {}
    if trial.passes(settings):
        prices = price(score_KN, centre, temperature=trial.temperature, kappa=settings.kappa).tolist()
        for (episode, at), value in zip(turns, prices, strict=True):
            rho.setdefault(episode, {})[at] = value
    return Judgement(trial, trial.passes(settings), rho, centre)


def _unrated(lesson: Lesson) -> list[int]:
    """Turns to price: they end an interaction, carry no full rating, and a known outcome does not already price them."""
    return [
        at
        for at, (ends, channels) in enumerate(zip(lesson.ends, lesson.channels, strict=True))
        if ends
        and not (channels.rating is not None and channels.tau >= 1.0)
        and not (lesson.outcome_reward is not None and at == lesson.outcome_turn)
    ]


def _labels(replay: Replay, *, thumbs_only: bool) -> Labels:
    """Thumbs on answers, and the signs of earlier ratings."""
    found: list[tuple[torch.Tensor, str, float]] = []
    for lesson in replay.lessons.values():
        features = replay.features.get(lesson.episode_id)
        if features is None:
            continue
        if lesson.thumb is not None:
            found.append((features.answer_TG[lesson.outcome_turn], lesson.rater, float(lesson.thumb)))
        if not thumbs_only:
            found += [
                (features.answer_TG[at], lesson.rater, float(channels.rating > 0))
                for at, channels in enumerate(lesson.channels)
                if channels.rating
            ]
    if not found:
        return Labels(torch.zeros((0, 1)), (), torch.zeros(0))
    return Labels(
        torch.stack([feature for feature, _, _ in found]).float(),
        tuple(rater for _, rater, _ in found),
        torch.tensor([up for _, _, up in found]),
    )


def preferred(replay: Replay) -> Pairs:
    """Comparisons and corrections of which the reference has read both answers."""
    wanted = [preference for lesson in replay.lessons.values() for preference in lesson.preferences]
    if not wanted:
        return Pairs(torch.zeros((0, 1)), torch.zeros((0, 1)), ())
    place = {
        name: replay.features[lesson.episode_id].answer_TG[at]
        for lesson in replay.lessons.values()
        if lesson.episode_id in replay.features
        for at, name in enumerate(lesson.answers)
        if name
    }
    known = [pair for pair in wanted if pair.better in place and pair.worse in place]
    if not known:
        return Pairs(torch.zeros((0, 1)), torch.zeros((0, 1)), ())
    return Pairs(
        torch.stack([place[pair.better] for pair in known]).float(),
        torch.stack([place[pair.worse] for pair in known]).float(),
        tuple(pair.rater for pair in known),
    )
