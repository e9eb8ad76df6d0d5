"""Trust in words as of a time, the same after a restart; learning happens beside the work."""

import threading
import time

import pytest

from feedback.agent_file import Implicit
from feedback.implicit import MIN_PAIRS, Judge, Pair, rules
from feedback.judging import Judging

SETTINGS = Implicit(start=0.8, pairs=2)


def pair(number: int, thumb: int, verdict: int) -> Pair:
    return Pair(response_id=f"r{number}", text="Thanks!", thumb=thumb, verdict=verdict, at=100 * number)


PAIRS = [pair(1, 1, 1), pair(2, 1, 1), pair(3, 0, 1), pair(4, 1, 0)]


def test_trust_is_what_was_known_at_the_time() -> None:
    judging = Judging(SETTINGS, [])
    judging.note(PAIRS)
    assert [judging.tau(at) for at in (0, 100, 199, 200, 299)] == [0.8, 0.8, 0.8, 1.0, 1.0]
    assert judging.tau(300) == pytest.approx(2 * 2 / 3 - 1)
    assert judging.agreement() == (2, 3)
    judging.close()


def test_it_is_the_same_after_a_restart_and_in_any_order() -> None:
    noted, restarted = Judging(SETTINGS, []), Judging(SETTINGS, PAIRS)
    noted.note(PAIRS[2:])
    noted.note(PAIRS[:2])
    assert [noted.tau(at) for at in range(0, 500, 50)] == [restarted.tau(at) for at in range(0, 500, 50)]
    noted.close()
    restarted.close()


def test_a_changed_thumb_changes_the_pair_and_never_adds_one() -> None:
    judging = Judging(SETTINGS, PAIRS)
    judging.note([pair(3, 1, -1)])
    assert judging.agreement() == (3, 3)
    judging.close()


def test_what_must_be_forgotten_counts_no_more() -> None:
    judging = Judging(SETTINGS, PAIRS)
    judging.forget(["r3", "r4", "unknown"])
    assert (judging.agreement(), judging.tau(300)) == ((2, 2), 1.0)
    judging.close()


def test_learning_does_not_hold_up_the_work_and_is_taken_up_when_done() -> None:
    release = threading.Event()

    def learned(text: str) -> float:
        return 0.9

    def slow(_pairs: object) -> Judge:
        release.wait(10)
        return learned

    judging = Judging(SETTINGS, [pair(number, 1, 1) for number in range(MIN_PAIRS)])
    judging.learn_when_due(slow)
    assert judging.judge is rules
    release.set()
    deadline = time.monotonic() + 10
    while judging.judge is rules:
        judging.learn_when_due(slow)
        assert time.monotonic() < deadline
    assert judging.judge is learned
    judging.close()


def test_it_learns_again_only_when_there_is_clearly_more() -> None:
    calls: list[int] = []

    def learned(text: str) -> float:
        return 0.9

    def count(pairs: object) -> Judge:
        calls.append(len(pairs))  # type: ignore[arg-type]
        return learned

    def wait_for(judging: Judging, times: int) -> None:
        deadline = time.monotonic() + 10
        while len(calls) < times or judging.judge is rules:
            judging.learn_when_due(count)
            assert time.monotonic() < deadline

    judging = Judging(SETTINGS, [pair(number, 1, 1) for number in range(MIN_PAIRS - 1)])
    judging.learn_when_due(count)
    assert judging.judge is rules
    judging.note([pair(MIN_PAIRS, 1, 1)])
    wait_for(judging, 1)
    judging.note([pair(number, 1, 1) for number in range(100, 114)])
    judging.learn_when_due(count)
    judging.note([pair(200, 1, 1)])
    wait_for(judging, 2)
    judging.close()
    assert calls == [MIN_PAIRS, 75]
