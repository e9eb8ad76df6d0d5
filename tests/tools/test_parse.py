"""Sampled text -> calls: malformed ones stay visible, valid siblings still run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.parse import RAW_CAP, Call, parse_turn

NAMES = {"flights": ("to",), "calc": ("expr",), "now": (), "route": ("start", "end")}


def desk(text: str) -> tuple[Call, ...]:
    return parse_turn(text, "desk", NAMES).calls


def hermes(body: str) -> Call:
    (call,) = parse_turn(f"<tool_call>{body}</tool_call>", "hermes", NAMES).calls
    return call


def test_desk_calls_are_positional() -> None:
    turn = parse_turn(
        "Hm. <tool_call>flights(Lima)</tool_call><tool_call>calc((2+3)*4)</tool_call><|im_end|>",
        "desk",
        NAMES,
    )
    assert turn.text == "Hm."
    assert turn.calls == (
        Call("flights", "Lima", {"to": "Lima"}),
        Call("calc", "(2+3)*4", {"expr": "(2+3)*4"}),
    )
    assert desk("<tool_call>now()</tool_call>") == (Call("now", "", {}),)
    (route,) = desk("<tool_call>route(Lima, Oslo, Norway)</tool_call>")
    assert route.arguments_json == {"start": "Lima", "end": "Oslo, Norway"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>flights(Lima)", "never closed"),
        ("<tool_call>flights(Lima</tool_call>", "parenthesis is missing"),
        ("<tool_call>flights</tool_call>", "name(argument)"),
        ("<tool_call></tool_call>", "name(argument)"),
        ("<tool_call>flights()</tool_call>", "takes (to)"),
        ("<tool_call>route(Lima)</tool_call>", "takes (start, end)"),
        ("<tool_call>now(5)</tool_call>", "takes ()"),
        ("<tool_call>fligths(Lima)</tool_call>", "unknown tool"),
        ("flights(Lima)</tool_call>", "without"),
    ],
)  # fmt: skip
def test_malformed_desk_calls_say_why(text: str, why: str) -> None:
    (call,) = desk(text)
    assert call.arguments_json is None
    assert call.error is not None and why in call.error


def test_valid_siblings_of_a_malformed_call_parse() -> None:
    calls = desk("<tool_call>flights(Oslo<tool_call>flights(Lima)</tool_call><tool_call>calc(1+1</tool_call>")
    assert [call.error is None for call in calls] == [False, True, False]
    assert calls[1] == Call("flights", "Lima", {"to": "Lima"})


def test_hermes_keeps_the_raw_arguments() -> None:
    call = hermes('\n{"arguments": {"to":  "Li\\u006da"}, "name": "flights"}\n')
    assert call == Call("flights", '{"to":  "Li\\u006da"}', {"to": "Lima"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"name": "flights", "arguments": {"to": "Par', "not valid JSON"),
        ('{"name": "flights", "arguments": "[]"}', "not a string"),
        ('{"name": "flights", "arguments": [1]}', "not a list"),
        ('{"name": "flights", "arguments": 3}', "not a number"),
        ('{"name": "flights", "arguments": null}', "not null"),
        ('{"name": "flights"}', "is missing"),
        ('{"name": "flights", "arguments": {}}{"name": "calc", "arguments": {}}', "one object per call"),
        ('{"name": "flights", "arguments": {"to": "a", "to": "b"}}', "given twice"),
        ('{"name": null, "arguments": {}}', "must be a tool name"),
        ("[1]", "not a list"),
        ("null", "not null"),
        ('""', "not a string"),
        ("", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_hermes_calls_say_why(body: str, why: str) -> None:
    call = hermes(body)
    assert call.arguments_json is None
    assert call.error is not None and why in call.error
    assert len(call.error) < RAW_CAP + 200


def test_an_unknown_hermes_tool_is_an_error_that_keeps_its_arguments() -> None:
    call = hermes('{"name": "get_wheather", "arguments": {"to": "Lima"}}')
    assert call.arguments_json == {"to": "Lima"}
    assert call.error is not None and "get_wheather" in call.error


@given(st.text(max_size=60), st.sampled_from(["desk", "hermes"]))
def test_any_text_parses_to_something(text: str, dialect: str) -> None:
    turn = parse_turn(f"{text}<tool_call>{text}</tool_call>{text}", dialect, NAMES)  # type: ignore[arg-type]
    assert turn.calls
    assert "<tool_call>" not in turn.text


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=4,
    )
)
def test_hermes_arguments_survive(arguments: dict[str, object]) -> None:
    raw = json.dumps(arguments, indent=1).replace("tool_call", "")
    call = hermes(f'{{"name": "flights", "more": [{raw}], "arguments": {raw}}}')
    assert (call.arguments, call.arguments_json) == (raw, json.loads(raw))
