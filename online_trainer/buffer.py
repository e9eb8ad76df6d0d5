"""Which experiences the policy may still learn from, and when there are enough.

Invariant: an episode is given to the policy at most once, at its newest revision when its cut-off has passed; whatever is
not given is counted once under its reason. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feedback.schemas import Experience, version_number
from feedback.training_section import BatchSettings, Staleness
from online_trainer.staleness import stale_reason

FOR_EVER = 2**62
"""Cut-off of an episode that must never come back."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where a version stands relative to the head: how many accepted updates had been made when it was offered."""

    at_update: int
    rejected: bool = False


@dataclass(frozen=True)
class Age:
    """What staleness is measured against: the head's accepted updates, and every version ever offered."""

    now_ms: int
    accepted: int
    versions: Mapping[str, Line]

    def reason(self, version: str, closed_at: int, settings: Staleness) -> str | None:
        """Why a turn of this version, in an episode closed then, is too old for the head, or None."""
        age_s = (self.now_ms - closed_at) / 1000
        line = self.versions.get(version)
        if line is None:
            return "foreign_version"
        if line.rejected:
            return "rejected_version"
        newer = sum(
            version_number(other) > version_number(version)
            for other, known in self.versions.items()
            if not known.rejected
        )
        lag, update_lag = newer, self.accepted - line.at_update
        return stale_reason(lag=lag, update_lag=update_lag, age_s=age_s, settings=settings)


@dataclass
class Buffer:
    """Waiting episodes by id, the ids already settled (with their cut-off, so that they can be forgotten), counted reasons."""

    waiting: dict[str, Experience] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    untrainable: Counter[str] = field(default_factory=Counter)
    taken: int = 0

    def add(self, experience: Experience) -> bool:
        """Keep the newest revision of an episode that is not settled. False: the policy is done with it."""
        if experience.episode_id in self.settled:
            return False
        known = self.waiting.get(experience.episode_id)
        if known is None or experience.revision > known.revision:
            self.waiting[experience.episode_id] = experience
        return True

    def withdraw(self, episode_id: str) -> None:
        """Forget what a person took back."""
        if self.waiting.pop(episode_id, None) is not None:
            self.untrainable["withdrawn"] += 1
        self.settled[episode_id] = FOR_EVER

    def sift(self, age: Age, settings: Staleness, *, at_most: int) -> list[tuple[Experience, str]]:
        """Settle what is past its cut-off and can never be trained, or is one too many; what it was, and why."""
        due = self._due(age.now_ms)
        refused = [
            (experience, reason) for experience in due if (reason := _refusal(experience, age, settings))
        ]
        hopeless = {experience.episode_id for experience, _ in refused}
        usable = [experience for experience in due if experience.episode_id not in hopeless]
        refused += [(experience, "backlog") for experience in usable[at_most:]]
        for experience, reason in refused:
            self.settle(experience)
            self.untrainable[reason] += 1
        return refused

    def ready(self, now_ms: int, settings: BatchSettings) -> tuple[Experience, ...] | None:
        """The most useful episodes past their cut-off when they are enough; thumbs first where too few are rated."""
        due = self._due(now_ms)
        chosen = due[: settings.max_episodes]
        if _rated(chosen) < settings.min_rated:
            chosen = sorted(due, key=lambda e: e.thumb is None)[: settings.max_episodes]
        return tuple(chosen) if is_enough(chosen, settings) else None

    def _due(self, now_ms: int) -> list[Experience]:
        """Past their cut-off, the most useful first: those with a known outcome, and of these the newest.

        It matters when more arrives than updates can use: what the oldest say about an older champion then goes unused.
        """
        return sorted(
            (e for e in self.waiting.values() if e.cutoff_at <= now_ms),
            key=lambda e: (e.outcome_reward is None, -e.cutoff_at, e.episode_id),
        )

    def named(self, episode_ids: Sequence[str]) -> tuple[Experience, ...]:
        """The experiences of a batch that was written down before training."""
        return tuple(self.waiting[episode_id] for episode_id in episode_ids)

    def settle(self, experience: Experience) -> None:
        """The policy has had it, or never will."""
        self.waiting.pop(experience.episode_id, None)
        self.settled[experience.episode_id] = experience.cutoff_at

    def forget(self, before_ms: int) -> None:
        """Drop settled ids so old that their episode could not be trained anyway."""
        self.settled = {key: at for key, at in self.settled.items() if at >= before_ms}


def is_enough(chosen: Sequence[Experience], settings: BatchSettings) -> bool:
    """Enough episodes, ratings and people who reacted for one update (design 13, Batch and Raters)."""
    raters = len({experience.rater for experience in chosen if experience.outcome_reward is not None})
    return (
        len(chosen) >= settings.min_episodes
        and _rated(chosen) >= settings.min_rated
        and (settings.single_user or raters >= settings.min_users)
    )


def stale_turns(
    experiences: Sequence[Experience], age: Age, settings: Staleness
) -> dict[tuple[str, int], str]:
    """The turns of a batch that are too old, each with its reason: an episode may have been answered by two versions."""
    return {
        (experience.episode_id, number): reason
        for experience in experiences
        for number, priced in enumerate(experience.turns)
        if (reason := age.reason(priced.turn.adapter_version, experience.closed_at, settings))
    }


def _refusal(experience: Experience, age: Age, settings: Staleness) -> str | None:
    """Why the policy never trains on this episode."""
    if not experience.trainable:
        return experience.reason or "untrainable"
    if experience.arm == "holdout":
        return "holdout"
    if "evaluation" in experience.flags:
        return "evaluation"
    if not experience.turns:
        return "no_turns"
    if not all(priced.turn.prompt_ids for priced in experience.turns):
        return "no_prompt"
    stale = stale_turns([experience], age, settings)
    return next(iter(stale.values())) if len(stale) == len(experience.turns) else None


def _rated(experiences: Sequence[Experience]) -> int:
    return sum(experience.thumb is not None for experience in experiences)
