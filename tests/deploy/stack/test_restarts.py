"""Restarts are counted part by part: the third within minutes is a loop, a rest and an old mishap are not."""

from deploy.stack.restarts import WITHIN_S, Restarts
from deploy.stack.supervision import State


def running(pid: int) -> State:
    return State("RUNNING", pid, 0)


def test_the_third_restart_within_minutes_is_a_loop() -> None:
    restarts = Restarts()
    seen = [restarts.saw("one", running(pid), at=20.0 * pid) for pid in (1, 1, 2, 2, 3)]

    assert seen == [False, False, True, False, True]
    assert not restarts.is_looping("one")
    assert restarts.saw("one", running(4), at=80.0)
    assert restarts.is_looping("one") and not restarts.is_looping("another")


def test_a_restart_an_hour_is_no_loop() -> None:
    restarts = Restarts()
    for pid in range(1, 9):
        restarts.saw("one", running(pid), at=pid * WITHIN_S)

    assert not restarts.is_looping("one")


def test_a_part_between_two_lives_is_counted_once() -> None:
    restarts = Restarts()
    restarts.saw("one", running(1), at=0.0)

    assert not restarts.saw("one", State("BACKOFF", 0, 1), at=1.0)
    assert restarts.saw("one", State("STARTING", 2, 1), at=2.0)


def test_a_part_that_rested_was_not_restarted() -> None:
    restarts = Restarts()
    restarts.saw("trainer", running(1), at=0.0)
    restarts.saw("trainer", State("STOPPED", 0, 0), at=1.0)

    assert not restarts.saw("trainer", running(2), at=2.0)
