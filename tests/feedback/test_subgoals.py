"""Phi rises with verified tool results, and only with them."""

from collections.abc import Sequence

import pytest

from feedback.agent_file import AgentFileError, Subgoal
from feedback.schemas import ToolCall, ToolOutcome
from feedback.subgoals import load_checks, potentials
from tests.feedback.building import call_turn, interaction, turn


def looked_up(results: Sequence[ToolOutcome]) -> bool:
    return any(result.name == "flights" and result.fault is None for result in results)


def calculated(results: Sequence[ToolOutcome]) -> bool:
    return any(result.name == "calculate" for result in results)


def called(name: str, **changes: object) -> object:
    result = ToolOutcome.model_validate({"call_id": "c", "name": name, "content": "x"} | changes)
    return call_turn(ToolCall(id="c", name=name, arguments=""), results=(result,))


def test_phi_is_the_share_of_checks_met_before_each_turn() -> None:
    episode = [interaction(0, turns=(called("flights"), called("calculate"), turn())), interaction(1)]
    assert potentials(episode, (looked_up, calculated)) == [0.0, 0.5, 1.0, 1.0]


def test_a_failed_look_up_and_mere_talk_earn_nothing() -> None:
    episode = [interaction(0, turns=(called("flights", fault="timeout"), turn("I looked up the flights.")))]
    assert potentials(episode, (looked_up,)) == [0.0, 0.0]


def test_without_subgoals_there_is_no_phi() -> None:
    assert potentials([interaction(0)], ()) is None


def test_checks_are_found_by_their_address_or_named_when_missing() -> None:
    address = f"{__name__}:looked_up"
    assert load_checks([Subgoal(name="priced", check=address)]) == (looked_up,)
    for wrong in ("no.such.module:x", f"{__name__}:nothing", "nonsense"):
        with pytest.raises(AgentFileError, match=r"rewards\.subgoals\.priced"):
            load_checks([Subgoal(name="priced", check=wrong)])
