"""Indicators are known for every episode and never from a rating."""

from feedback.indicators import indicators
from feedback.schemas import ToolCall, ToolOutcome
from tests.feedback.building import call_turn, interaction, turn

GOOD = call_turn(ToolCall(id="c", name="flights", arguments="Rome"))


def test_a_clean_episode_trips_nothing() -> None:
    found = indicators([interaction(0, turns=(GOOD, turn())), interaction(1, latency_ms=300.0)])
    assert not (found.request_error or found.invalid_tool_call or found.clarifying_question)
    assert (found.latency_ms, found.completion_tokens) == (200.0, 9)


def test_a_failed_request_is_an_error_and_a_client_that_left_is_not() -> None:
    assert indicators([interaction(0, status="failed")]).request_error
    assert not indicators([interaction(0, status="aborted")]).request_error


def test_the_models_faults_count_and_the_tools_do_not() -> None:
    for fault, expected in (
        ("malformed", True),
        ("unknown_tool", True),
        ("arguments", True),
        ("timeout", False),
    ):
        result = ToolOutcome.model_validate({"call_id": "c", "name": "x", "content": "", "fault": fault})
        call = call_turn(ToolCall(id="c", name="x", arguments=""), results=(result,))
        assert indicators([interaction(0, turns=(call,))]).invalid_tool_call is expected
    unread = call_turn(ToolCall(id="c", name="x", arguments="", error="bad"))
    assert indicators([interaction(0, turns=(unread,))]).invalid_tool_call


def test_a_question_back_is_a_reply_without_a_call_that_ends_in_one() -> None:
    assert indicators([interaction(0, turns=(turn("Which city? "),))]).clarifying_question
    assert not indicators([interaction(0, turns=(GOOD, turn("Shall I book?")))]).clarifying_question
    assert not indicators([interaction(0, turns=())]).clarifying_question
