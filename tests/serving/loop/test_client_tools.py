"""Tools of the client and histories with tools in them: handed over, taken back, never run, never fatal."""

from pathlib import Path
from typing import Any

import pytest

from serving.history import BROKEN_CALL
from tests.serving.harness import bearer, content, events, scripted, world

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCRIPT = scripted({"Weather?": ["<tool_call>get_weather(Lima)</tool_call>", "Sunny."]})


async def test_a_clients_tool_is_called_by_the_client(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here:
        first = await here.answer("Weather?", tools=[WEATHER], user="anna")
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls" and message["content"] is None
        (call,) = message["tool_calls"]
        assert call["type"] == "function"
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Lima"}'}
        history = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny, 30"},
        ]
        second = await here.answer(history, tools=[WEATHER], user="anna")
        assert second["choices"][0]["message"]["content"] == "Sunny."
        assert second["episode_id"] == first["episode_id"]
        one, two = await here.interactions(2)
        start = one.turns[0].prompt_ids + one.turns[0].token_ids
        assert two.turns[0].prompt_ids[: len(start)] == start and two.flags == ()


async def test_a_clients_tool_call_streams_in_openai_deltas(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here:
        found = events((await here.chat("Weather?", tools=[WEATHER], stream=True)).content)
        deltas = [event["choices"][0]["delta"] for event in found[:-1]]
        (call,) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert (call["index"], call["function"]["name"]) == (0, "get_weather")
        assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert content(found) == ""


async def test_a_clash_of_names_and_unsupported_choices_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here:
        clash = {"type": "function", "function": {"name": "flights"}}
        for tools, extra, param in (
            ([clash], {}, "tools[0].function.name"),
            ([WEATHER, WEATHER], {}, "tools[1].function.name"),
            ([WEATHER], {"tool_choice": "always"}, "tool_choice"),
            ([], {"tool_choice": "required"}, "tool_choice"),
            (
                [WEATHER],
                {"tool_choice": {"type": "function", "function": {"name": "flights"}}},
                "tool_choice",
            ),
        ):
            response = await here.chat("Hi", tools=tools, **extra)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("arguments", ['{"value": ', "null", "", "[1]", '{"a": 1}{"b": 2}'])
async def test_a_broken_call_in_the_history_bricks_nothing(tmp_path: Path, arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    history: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "not executed: the arguments cannot be read"},
        {"role": "user", "content": "Continue."},
    ]
    async with world(tmp_path, script=SCRIPT) as here:
        assert (await here.answer(history))["choices"][0]["message"]["content"] == "Hello."
        (record,) = await here.interactions(1)
        assert record.flags == ("rewritten",)
        seen = here.stub.tokenizer.decode(here.stub.seen[-1].prompt, skip_special_tokens=False)
        assert f"tool\n{BROKEN_CALL}not executed" in seen


async def test_every_text_shape_of_a_message_is_taken(tmp_path: Path) -> None:
    history = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant"},
        {"role": "tool", "content": "orphan"},
        {"role": "user", "content": "hello", "name": "bob"},
        {"role": "system", "content": "late"},
    ]
    async with world(tmp_path, script=SCRIPT) as here:
        assert (await here.answer(history))["choices"][0]["message"]["content"] == "Hello."
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        refused = await here.chat(image)
        lone = b'{"model": "travel-desk", "messages": [{"role": "user", "content": "\\ud800"}]}'
        broken = await here.http.post("/v1/chat/completions", content=lone, headers=bearer())
        assert broken.status_code == 400
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[0].type")
