"""What binds a turn: the grammar of a call, of a JSON answer, and the choice among declared tools."""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from serving.bodies import ClientTool
from serving.errors import ApiError
from serving.loop.client_tools import ToolChoice, chosen, declared
from serving.loop.grammar import json_answer, one_call


def tool(name: str, *arguments: str, **schema: object) -> ClientTool:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments), **schema}
    return ClientTool.model_validate({"function": {"name": name, "parameters": parameters}})


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ("weather(Lima)", True),
        ("weather( Lima)", True),
        ("weather()", False),
        ("weather(Lima", False),
        ("book(Lima,two nights, please)", True),
        ("book(Lima)", False),
        ("now.utc()", True),
        ("nowxutc()", False),
        ("other(Lima)", False),
        ("weather(Lima) and more", False),
    ],
)
def test_a_positional_call_is_one_of_the_declared_tools(body: str, fits: bool) -> None:
    tools = declared([tool("weather", "city"), tool("book", "city", "wish"), tool("now.utc")], taken=set())
    pattern = one_call("desk", tools)["structured_outputs"]["regex"]
    assert bool(re.fullmatch(pattern, body)) is fits


def test_a_json_call_is_one_of_the_declared_tools_with_its_arguments() -> None:
    city = {"City": {"type": "string", "enum": ["Lima"]}}
    typed = tool(
        "weather", properties={"city": {"$ref": "#/$defs/City"}}, required=["city"], **{"$defs": city}
    )
    tools = declared([typed, tool("now")], taken=set())
    schema = one_call("hermes", tools)["structured_outputs"]["json"]
    Draft202012Validator.check_schema(schema)
    fits = Draft202012Validator(schema).is_valid
    assert fits({"name": "weather", "arguments": {"city": "Lima"}}) and fits({"name": "now", "arguments": {}})
    assert not fits({"name": "weather", "arguments": {"city": "Rome"}})
    assert not fits({"name": "weather", "arguments": {}})
    assert not fits({"name": "flights", "arguments": {}})
    assert not fits({"name": "now", "arguments": {}, "more": 1})
    other = tool(
        "trip", properties={"to": {"$ref": "#/$defs/City"}}, **{"$defs": {"City": {"type": "integer"}}}
    )
    clash = one_call("hermes", declared([typed, other], taken=set()))["structured_outputs"]["json"]
    assert Draft202012Validator(clash).is_valid({"name": "trip", "arguments": {"to": "anything"}})
    assert not Draft202012Validator(clash).is_valid({"name": "weather", "arguments": {"city": "Rome"}})


def test_choices_among_the_declared_tools() -> None:
    names = ["weather", "book"]
    function = {"type": "function", "function": {"name": "book"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function]}}
    assert chosen(None, names) == chosen("auto", []) == ToolChoice()
    assert chosen("none", names) == ToolChoice(frozenset())
    assert chosen("required", names) == ToolChoice(frozenset(names), forced=True)
    assert chosen(function, names) == ToolChoice(frozenset({"book"}), forced=True)
    assert chosen(some, names) == ToolChoice(frozenset({"book"}))
    for wrong in ("any", {"type": "function"}, {"type": "function", "function": {"name": "x"}}, {}):
        with pytest.raises(ApiError) as caught:
            chosen(wrong, names)
        assert (caught.value.status, caught.value.param) == (400, "tool_choice")
    with pytest.raises(ApiError):
        chosen("required", [])


def test_json_answers() -> None:
    assert json_answer(None) is json_answer({"type": "text"}) is None
    assert json_answer({"type": "json_object"}) == {"response_format": {"type": "json_object"}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wish = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    found = json_answer(wish)
    assert found is not None and found["response_format"]["json_schema"]["schema"] == schema
    for wrong in (
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}},
        {"type": "grammar"},
        {},
    ):
        with pytest.raises(ApiError) as caught:
            json_answer(wrong)
        assert caught.value.param is not None and caught.value.param.startswith("response_format"), (
            json.dumps(wrong)
        )
