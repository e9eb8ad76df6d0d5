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


def read_split(progress: Progress, split: TrafficSplit) -> Turn:
    """The newest verdict on each version past the champion, and a champion that moved backwards or is none of ours.

    Told again it changes nothing: what was rejected is no longer on the line.
    """
    newest = {verdict.version: verdict.verdict for verdict in split.verdicts}
    champion = split.champion.version
    live = {name for name, version in progress.versions.items() if not version.rejected}
    past = {name for name in live if version_number(name) > version_number(champion)}
    lost = any(newest.get(name) in BAD for name in past)
    undone = champion in live and version_number(champion) < version_number(progress.champion)
    returns = lost or undone or champion not in live
    return Turn(champion, returns, tuple(sorted(past)) if returns else ())
