"""What a traffic split means for the head: go on, or return to the champion and reject what descends from it.

Invariant: the head's line never goes on from a version that was rolled back. Pure: nothing is loaded here.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedback.schemas import TrafficSplit, Verdict, version_number
from online_trainer.state import Progress

BAD = {Verdict.ROLLED_BACK, Verdict.ABORTED}


@dataclass(frozen=True)
class Turn:
    """The champion in force; when the head must go back to it, the versions rejected on the way."""

    champion: str
    returns: bool
    rejected: tuple[str, ...]
    resolved: tuple[str, ...]


def read_split(progress: Progress, split: TrafficSplit) -> Turn:
    """Verdicts not yet seen, and a champion that moved backwards or is none of ours."""
    fresh = [verdict for verdict in split.verdicts if verdict.version not in progress.resolved]
    champion = split.champion.version
    live = {name for name, version in progress.versions.items() if not version.rejected}
    lost = any(verdict.version in live and verdict.verdict in BAD for verdict in fresh)
    undone = champion in live and version_number(champion) < version_number(progress.champion)
    foreign = champion not in live
    returns = lost or undone or foreign
    rejected = sorted(name for name in live if version_number(name) > version_number(champion))
    return Turn(
        champion=champion,
        returns=returns,
        rejected=tuple(rejected) if returns else (),
        resolved=tuple(verdict.version for verdict in fresh),
    )
