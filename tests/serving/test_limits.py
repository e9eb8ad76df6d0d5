"""Rates and seats: closed-form times, and a bound that no order of requests can break."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.limits import Pace, Seats


def test_a_burst_then_one_at_each_interval() -> None:
    pace = Pace(2.0, 3)
    assert [pace.wait("a", 10.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert pace.wait("a", 10.25) == 0.25
    assert [pace.wait("a", 10.5), pace.wait("a", 10.5)] == [0, 0.5]
    assert [pace.wait("a", 12.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_names_do_not_share_and_a_refusal_costs_nothing() -> None:
    pace = Pace(1.0, 1)
    assert pace.wait("a", 0.0) == 0 and pace.wait("b", 0.0) == 0
    assert [pace.wait("a", 0.5) for _ in range(5)] == [0.5] * 5
    assert pace.wait("a", 1.0) == 0


def test_no_rate_is_no_limit() -> None:
    assert not any(Pace(0, 1).wait("a", 0.0) for _ in range(1000))


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 2), min_size=1, max_size=60),
    st.floats(0.1, 20),
    st.integers(1, 10),
    st.integers(0, 50),
)
def test_no_window_holds_more_than_a_burst_and_the_rate(
    gaps: list[float], rate: float, burst: int, first: int
) -> None:
    pace, now, passed = Pace(rate, burst), float(first), []
    for gap in gaps:
        now += gap
        if (wait := pace.wait("a", now)) == 0:
            passed.append(now)
        else:
            assert Pace(rate, burst).wait("a", now) == 0 < wait <= 1 / rate + 1e-6
    for start in range(len(passed)):
        for end in range(start, len(passed)):
            allowed = burst + rate * (passed[end] - passed[start])
            assert end - start + 1 <= allowed + 1e-6


def test_names_are_forgotten_when_they_are_whole_again_and_never_without_bound() -> None:
    pace = Pace(1.0, 1, names=10)
    for number in range(1000):
        pace.wait(str(number), number / 1000)
    assert len(pace._whole_at) <= 10
    assert pace.wait("999", 1.0) > 0  # the newest are kept
    for number in range(11):
        pace.wait(f"later {number}", 100.0)
    assert set(pace._whole_at) <= {f"later {number}" for number in range(11)}


def test_seats_are_given_back() -> None:
    seats = Seats(2)
    assert [seats.take("a"), seats.take("a"), seats.take("a"), seats.take("b")] == [True, True, False, True]
    seats.give_back("a")
    assert [seats.take("a"), seats.take("a")] == [True, False]
