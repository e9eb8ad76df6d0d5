"""Which version an episode gets. Pure: the assignment is made once, at an episode's first interaction, and stored.

The holdout is drawn first (by user where known, with its own salt), so no canary ever touches it.
"""

from dataclasses import dataclass, replace
from hashlib import sha256

from feedback.schemas import Arm, TrafficSplit

EVALUATION, MIXED = "evaluation", "mixed"


class NoSuchArm(ValueError):
    """The arm that was asked for runs nothing now."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """An arm, the version it meant then, and the probability of the candidate arm at that moment."""

    arm: Arm
    version: str
    propensity: float
    generation: int
    canary_id: str | None = None
    flags: tuple[str, ...] = ()


def bucket(salt: str, unit: str) -> float:
    """A number in [0, 1) that depends on the salt and the unit only (conventions 1.3)."""
    if not unit:
        raise ValueError("an empty unit would put everybody in one bucket")
    return int.from_bytes(sha256(f"{salt}:{unit}".encode()).digest()[:8], "big") / 2**64


def assign(split: TrafficSplit, episode_id: str, *, user: str | None, arm: Arm | None = None) -> Assignment:
    """The assignment of a new episode. `arm` is an admin's wish: it makes the episode an evaluation."""
    if arm is not None:
        return replace(_of_arm(split, arm), flags=(EVALUATION,))
    holdout = split.holdout
    if holdout is not None and bucket(holdout.salt, user or episode_id) < holdout.share:
        return _of_arm(split, "holdout")
    if split.share > 0 and bucket(split.salt, episode_id) < split.share:
        return _of_arm(split, "candidate")
    return _of_arm(split, "champion")


def resume(stored: Assignment, split: TrafficSplit) -> Assignment:
    """The stored assignment while its version is in the split; else the champion, flagged."""
    if stored.version in versions(split):
        return stored
    return replace(stored, version=split.champion.version, flags=(*stored.flags, MIXED))


def override(stored: Assignment, split: TrafficSplit, arm: Arm) -> Assignment:
    """An admin's wish inside a running episode."""
    wished = _of_arm(split, arm)
    mixed = (MIXED,) if wished.version != stored.version else ()
    return replace(wished, flags=(EVALUATION, *mixed))


def versions(split: TrafficSplit) -> set[str]:
    """Every version the split names."""
    found = {split.champion.version}
    if split.candidate is not None:
        found.add(split.candidate.version)
    if split.holdout is not None:
        found.add(split.holdout.ref.version)
    return found


def _of_arm(split: TrafficSplit, arm: Arm) -> Assignment:
    refs = {
        "champion": split.champion,
        "candidate": split.candidate,
        "holdout": split.holdout.ref if split.holdout else None,
    }
    ref = refs[arm]
    if ref is None:
        raise NoSuchArm(f"no {arm} is running")
    return Assignment(arm, ref.version, split.share, split.generation, split.canary_id)
