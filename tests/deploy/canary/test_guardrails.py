"""What counts as a fault, and from which episodes the champion's quantiles are taken."""

from deploy.canary.guardrails import GUARDRAILS, Thresholds, expected_clean, faults, thresholds
from feedback.schemas import Indicators


def _episodes(count: int, *, latency: float = 0.0, invalid: int = 0) -> list[Indicators]:
    return [
        Indicators(latency_ms=latency + index, completion_tokens=index, invalid_tool_call=index < invalid)
        for index in range(count)
    ]


def test_quantiles_leave_a_tenth_and_a_twentieth_above() -> None:
    episodes = _episodes(100)
    limits = thresholds(episodes, beside=episodes)
    assert limits == Thresholds(latency_ms=94.0, tokens=89.0)
    assert sum(faults(each, limits)["latency"] for each in episodes) == 5
    assert sum(faults(each, limits)["length"] for each in episodes) == 10


def test_latency_is_compared_with_the_same_hours_only() -> None:
    """History was fast and the whole machine is slow now: nobody is accused."""
    limits = thresholds(_episodes(100), beside=_episodes(50, latency=1000.0))
    assert limits.latency_ms == 1047.0
    assert thresholds(_episodes(100), beside=_episodes(39)).latency_ms is None


def test_an_unknown_threshold_is_not_a_clean_episode() -> None:
    found = faults(Indicators(latency_ms=1e9, completion_tokens=10**6), Thresholds())
    assert set(found) == {"request_error", "invalid_tool_call", "clarifying_question"}


def test_expected_rates_come_from_the_champion_or_from_a_guess() -> None:
    assert expected_clean(_episodes(50, invalid=10))["invalid_tool_call"] == 0.8
    guessed = expected_clean(_episodes(5, invalid=5))
    assert set(guessed) == set(GUARDRAILS)
    assert (guessed["invalid_tool_call"], guessed["length"]) == (0.95, 0.9)
