"""Every episode the trainer has seen, as the reward model and the critic learn from it: prices, labels and features.

Invariant: an episode has one lesson, its newest revision; features are computed once and again only when an episode that
was taken for over went on, since recorded ids never change.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from pydantic import BaseModel, ConfigDict

from feedback.agent_file import Weights
from feedback.schemas import Channels, Correction, Experience
from online_trainer.features import Features, Survey

KEPT_UNSEEN = 256
"""Rated episodes that wait to be read; where updates are slow they would pile up."""


CHILD = "#"
"""Between an episode's id and the name of an answer that people wrote in place of one of its own."""


class Preference(BaseModel):
    """One person's opinion that one answer is better than another; both by the names in `Lesson.answers`."""

    model_config = ConfigDict(frozen=True)

    better: str
    worse: str
    rater: str


class Lesson(BaseModel):
    """An episode without its ids. Turns after `outcome_turn` are courtesies that nobody rates; `states` names what stood
    before each turn, so that like is compared with like; `answers` the replies, "" for a turn that is not the end of one."""

    model_config = ConfigDict(frozen=True)

    episode_id: str
    revision: int
    rater: str
    ends: tuple[bool, ...]
    channels: tuple[Channels, ...]
    thumb: int | None
    outcome_reward: float | None
    outcome_turn: int
    states: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    preferences: tuple[Preference, ...] = ()

    @classmethod
    def of(cls, experience: Experience) -> Lesson:
        return cls(
            episode_id=experience.episode_id,
            revision=experience.revision,
            rater=experience.rater,
            ends=tuple(priced.ends_interaction for priced in experience.turns),
            channels=tuple(priced.channels for priced in experience.turns),
            thumb=experience.thumb,
            outcome_reward=experience.outcome_reward,
            outcome_turn=len(experience.turns) - 1
            if experience.outcome_turn is None
            else experience.outcome_turn,
            states=tuple(_state(priced.turn.prompt_ids) for priced in experience.turns),
            answers=tuple(
                _named(priced.response_id) if priced.ends_interaction else "" for priced in experience.turns
            ),
            preferences=_preferences(experience),
        )


def _state(prompt_ids: Sequence[int]) -> str:
    """Names what stood before a turn, to the letter."""
    return hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=8).hexdigest()


def _named(response_id: str) -> str:
    return hashlib.blake2b(response_id.encode(), digest_size=8).hexdigest()


def corrected_id(correction: Correction) -> str:
    """Stands for the response id of an answer that a person wrote; of another text it is another."""
    return _named(f"{correction.response_id}\0{correction.rater}\0{correction.text}")


def child_id(episode_id: str, correction: Correction) -> str:
    """Names the lesson of an answer that a person wrote for an episode."""
    return episode_id + CHILD + corrected_id(correction)


def _preferences(experience: Experience) -> tuple[Preference, ...]:
    """Comparisons of replies, and corrections of them; one that is about a step says nothing about the reply."""
    chosen = [
        Preference(better=_named(pair.chosen), worse=_named(pair.rejected), rater=pair.rater)
        for pair in experience.comparisons
    ]
    written = [
        Preference(
            better=_named(corrected_id(correction)),
            worse=_named(correction.response_id),
            rater=correction.rater,
        )
        for correction in experience.corrections
        if correction.tool_call_id is None
    ]
    return (*chosen, *written)


def is_labelled(experience: Experience) -> bool:
    """Whether the reward model has something to learn from it."""
    return experience.thumb is not None or bool(experience.comparisons or experience.corrections)


def rewards(lesson: Lesson, rho: Mapping[int, float], *, weights: Weights, clip: float) -> tuple[float, ...]:
    """Reward of each turn (algorithms.md 9.2): clip(q + f + progress + length), the known outcome added at its turn.

    q = (1 - tau) rho + tau u, where the reward model's rho is 0 for turns it does not price.
    """
    priced = []
    for number, channels in enumerate(lesson.channels):
        tau = channels.tau if channels.rating is not None else 0.0
        quality = (1.0 - tau) * rho.get(number, 0.0) + tau * (channels.rating or 0.0)
        total = (
            weights.quality * quality
            + weights.tools * channels.tools
            + weights.progress * channels.progress
            + weights.length * channels.length
        )
        priced.append(max(-clip, min(clip, total)))
    if priced and lesson.outcome_reward is not None:
        priced[lesson.outcome_turn] += weights.outcome * lesson.outcome_reward
    return tuple(priced)


@dataclass
class Replay:
    """Lessons by episode, oldest first; experiences whose features may still be computed."""

    lessons: dict[str, Lesson] = field(default_factory=dict)
    features: dict[str, Features] = field(default_factory=dict)
    unseen: dict[str, Experience] = field(default_factory=dict)

    def add(self, experience: Experience) -> None:
        """Keep the newest revision."""
        known = self.lessons.get(experience.episode_id)
        if known is not None and known.revision >= experience.revision:
            return
        self.lessons[experience.episode_id] = Lesson.of(experience)
        if known is not None and known.preferences:
            written = {child_id(experience.episode_id, each) for each in experience.corrections}
            for child in set(self._children(experience.episode_id)) - written:
                self._forget(child)
        features = self.features.get(experience.episode_id)
        if features is None or len(features.state_TF) != len(experience.turns):
            self.features.pop(experience.episode_id, None)
            self.unseen[experience.episode_id] = experience
        elif experience.corrections:
            self.unseen[experience.episode_id] = experience  # to read what should have been said
        else:
            self.unseen.pop(experience.episode_id, None)

    def withdraw(self, episode_id: str) -> int:
        """Forget an episode and the answers that people wrote for it; how many turns these were."""
        return sum(self._forget(name) for name in (episode_id, *self._children(episode_id)))

    def _children(self, episode_id: str) -> list[str]:
        return [name for name in self.lessons if name.startswith(episode_id + CHILD)]

    def _forget(self, name: str) -> int:
        known = self.lessons.pop(name, None)
        self.features.pop(name, None)
        self.unseen.pop(name, None)
        return 0 if known is None else len(known.ends)

    def rated_unseen(self, at_most: int) -> list[Experience]:
        """The newest thumbs, comparisons and corrections that nobody has read yet."""
        rated = [experience for experience in self.unseen.values() if is_labelled(experience)]
        return rated[-at_most:] if at_most else []

    def learn(self, survey: Survey, read: Iterable[Experience], *, gamma: float) -> None:
        """Features of what the survey read. Of the rest only the newest labelled ones are kept to be read later."""
        for experience in read:
            if experience.episode_id not in self.features:
                self.features[experience.episode_id] = survey.features(experience, gamma=gamma)
            self.unseen.pop(experience.episode_id, None)
        self.unseen = {e.episode_id: e for e in self.rated_unseen(KEPT_UNSEEN)}

    def trim(self, turns: int, *, keep: Container[str]) -> None:
        """Drop the oldest lessons beyond so many turns, but none that the policy still waits for."""
        total = sum(len(lesson.ends) for lesson in self.lessons.values())
        for episode_id in list(self.lessons):
            if total <= turns:
                return
            if episode_id not in keep and episode_id in self.lessons:
                total -= self.withdraw(episode_id)

    def known(self) -> list[Lesson]:
        """Lessons with an outcome and features, in order of arrival."""
        return [
            lesson
            for lesson in self.lessons.values()
            if lesson.outcome_reward is not None and lesson.episode_id in self.features
        ]

    def tensors(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: all features end to end, in the order of `order()`."""
        kept = [self.features[episode_id] for episode_id in self.order()]
        if not kept:
            return {}
        return {
            "state_NF": torch.cat([features.state_TF for features in kept]),
            "answer_NG": torch.cat([features.answer_TG for features in kept]),
        }

    def order(self) -> list[str]:
        return [episode_id for episode_id in self.lessons if episode_id in self.features]

    @classmethod
    def restore(
        cls,
        lessons: Iterable[Lesson],
        *,
        order: Iterable[str],
        tensors: Mapping[str, torch.Tensor],
        unseen: Iterable[Experience],
    ) -> Replay:
        """The inverse of `tensors`."""
        by_id = {lesson.episode_id: lesson for lesson in lessons}
        ids = list(order)
        lengths = [len(by_id[episode_id].ends) for episode_id in ids]
        pieces = (
            zip(
                torch.split(tensors["state_NF"], lengths),
                torch.split(tensors["answer_NG"], lengths),
                strict=True,
            )
            if ids
            else []
        )
        features = {i: Features(state, answer) for i, (state, answer) in zip(ids, pieces, strict=True)}
        return cls(by_id, features, {experience.episode_id: experience for experience in unseen})
