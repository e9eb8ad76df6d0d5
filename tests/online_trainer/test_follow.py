"""Promoted: go on. Rolled back, aborted or undone: the head returns to the champion and its descendants are rejected."""

import pytest

from feedback.agent_file import AgentFile
from feedback.schemas import AdapterRef, TrafficSplit, Verdict, VersionVerdict, version_name
from online_trainer.follow import read_split
from online_trainer.state import Progress, Version


def name(number: int) -> str:
    return version_name("tiny-desk", number)


@pytest.fixture
def progress(agent: AgentFile) -> Progress:
    """Three versions on one line, the first is the champion."""
    made = Progress.fresh(agent, seed=0, threads=1, dtype="torch.float32")
    for number in (1, 2, 3):
        made.versions[name(number)] = Version(at_update=2 * number, serial=number)
    made.champion = name(1)
    return made


def split(champion: int, *verdicts: tuple[int, Verdict]) -> TrafficSplit:
    return TrafficSplit(
        agent="tiny-desk",
        generation=1,
        champion=AdapterRef(version=name(champion)),
        verdicts=tuple(
            VersionVerdict(version=name(number), verdict=verdict, reason="") for number, verdict in verdicts
        ),
        at=0,
    )


def test_a_promotion_goes_on(progress: Progress) -> None:
    turn = read_split(progress, split(2, (2, Verdict.PROMOTED)))
    assert (turn.champion, turn.returns, turn.rejected) == (name(2), False, ())


@pytest.mark.parametrize("verdict", [Verdict.ROLLED_BACK, Verdict.ABORTED])
def test_a_refused_trial_returns_to_the_champion(progress: Progress, verdict: Verdict) -> None:
    turn = read_split(progress, split(1, (2, verdict)))
    assert turn.returns
    assert turn.rejected == (name(2), name(3))


def test_a_superseded_candidate_changes_nothing(progress: Progress) -> None:
    assert not read_split(progress, split(1, (2, Verdict.SUPERSEDED))).returns


def test_of_two_verdicts_on_a_version_the_newer_counts(progress: Progress) -> None:
    """A superseded candidate may be tried again."""
    assert not read_split(progress, split(1, (2, Verdict.SUPERSEDED))).returns
    turn = read_split(progress, split(1, (2, Verdict.SUPERSEDED), (2, Verdict.ROLLED_BACK)))
    assert turn.returns
    assert turn.rejected == (name(2), name(3))
    assert not read_split(progress, split(1, (2, Verdict.ROLLED_BACK), (2, Verdict.SUPERSEDED))).returns


def test_a_verdict_told_again_changes_nothing(progress: Progress) -> None:
    for number in (2, 3):
        progress.versions[name(number)].rejected = True
    assert not read_split(progress, split(1, (2, Verdict.ROLLED_BACK))).returns


def test_a_refused_version_that_was_retried_and_promoted_is_returned_to(progress: Progress) -> None:
    progress.versions[name(2)].rejected = True
    turn = read_split(progress, split(2, (2, Verdict.ROLLED_BACK), (2, Verdict.PROMOTED)))
    assert turn.returns
    assert turn.rejected == (name(3),)


def test_a_verdict_on_what_the_champion_has_left_behind_changes_nothing(progress: Progress) -> None:
    progress.champion = name(2)
    assert not read_split(progress, split(2, (2, Verdict.PROMOTED), (1, Verdict.ROLLED_BACK))).returns


def test_an_undone_champion_rejects_what_came_after(progress: Progress) -> None:
    progress.champion = name(2)
    turn = read_split(progress, split(1))
    assert turn.returns
    assert turn.rejected == (name(2), name(3))


def test_somebody_elses_refused_version_changes_nothing(progress: Progress) -> None:
    assert not read_split(progress, split(1, (9, Verdict.ROLLED_BACK))).returns


def test_somebody_elses_champion_is_returned_to(progress: Progress) -> None:
    turn = read_split(progress, split(9, (9, Verdict.PROMOTED)))
    assert turn.returns
    assert turn.rejected == ()
