"""The Responses API by the official client: whole, streamed as typed events, continued, with tools; sync and async."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from serving.engines.stub.script import Reply
from serving.responses.body import ResponsesRequest, as_chat, own_messages
from tests.serving.harness import AGENT, World, bearer, scripted, until, world

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TEXTS = ["Grüße 👩‍💻 <tool_", "<tool_call>flights(Lima)</tool_call>"]
SCRIPT = scripted(
    {
        "Say": Reply(TEXTS[0], chunk=2),
        "Fly": [TEXTS[1], "Flight 24."],
        "Weather?": ["Let me look. <tool_call>get_weather(Lima)</tool_call>", "Sunny."],
        "And then?": "More.",
        "Long": "abcdef",
        "Break": Reply("Hello there", chunk=1, each_s=0.05, break_after=4),
    }
)


@asynccontextmanager
async def client(here: World) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{here.url}/v1", api_key="secret-app", max_retries=0) as made:
        yield made


async def test_whole_and_streamed_are_one_response_and_the_events_build_it(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here, client(here) as api:
        for text, tools, shown in (
            ("Say", [], TEXTS[0]),
            ("Fly", [], "Flight 24."),
            ("Weather?", [WEATHER], ""),
        ):
            options: Any = {"model": AGENT, "input": text, "tools": tools, "top_logprobs": 1}
            whole = await api.responses.create(**options)
            events = [event async for event in await api.responses.create(**options, stream=True)]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
            last: Any = events[-1]
            assert last.type == "response.completed" and events[0].response.id == last.response.id
            assert whole.status == last.response.status == "completed"
            assert bare(whole) == bare(last.response) == built(events)
            assert whole.output_text.strip() == (shown or "Let me look.")
            assert whole.usage and whole.usage.output_tokens == last.response.usage.output_tokens > 0
            assert whole.id.startswith("resp_") and len(whole.id) == 37
        records = await here.interactions(6)
        assert {record.response_id for record in records} > {whole.id}
        rated = await here.rate({"response_id": whole.id, "name": "user_rating", "value": True})
        assert rated.status_code == 202


def bare(response: Any) -> list[Any]:
    """The output without ids of this one response."""
    found = response.model_dump(include={"output"})["output"]
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in found]


def built(events: list[Any]) -> list[Any]:
    """The output put together from deltas alone, checked against what each `done` says."""
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    scores = [
        each.token
        for event in events
        if event.type == "response.output_text.delta"
        for each in event.logprobs
    ]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    for item in items:
        if item.type == "message":
            (done,) = [event for event in events if event.type == "response.output_text.done"]
            assert item.content[0].text == text == done.text
            assert [each.token for each in item.content[0].logprobs] == scores
        else:
            own = [e for e in events if getattr(e, "item_id", None) == item.id]
            assert "".join(e.delta for e in own if e.type.endswith("arguments.delta")) == item.arguments
    kinds = [event.type for event in events]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(items)
    return [
        {key: value for key, value in item.model_dump().items() if key not in ("id", "call_id")}
        for item in items
    ]


async def test_a_response_goes_on_from_the_one_before_in_exact_ids(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here, client(here) as api:
        first = await api.responses.create(
            model=AGENT, input="Weather?", tools=[WEATHER], instructions="Be kind."
        )
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, call.arguments) == ("get_weather", '{"city": "Lima"}')
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 30"}]
        second = await api.responses.create(
            model=AGENT, input=output, tools=[WEATHER], instructions="Be kind.", previous_response_id=first.id
        )
        third = await api.responses.create(
            model=AGENT,
            input="And then?",
            tools=[WEATHER],
            instructions="Be kind.",
            previous_response_id=second.id,
        )
        assert (second.output_text, third.output_text) == ("Sunny.", "More.")
        one, two, three = await here.interactions(3)
        for before, after in ((one, two), (two, three)):
            ids = before.turns[-1].prompt_ids + before.turns[-1].token_ids
            assert after.turns[0].prompt_ids[: len(ids)] == ids
            assert after.parent_response_id == before.response_id and after.flags == ()
        assert three.response_id == third.id and one.episode_id == three.episode_id
        # The same conversation kept by the client, with nothing stored.
        said: Any = [
            {"role": "user", "content": "Weather?"},
            *[i.model_dump(exclude_none=True) for i in first.output],
        ]
        kept = await api.responses.create(
            model=AGENT, input=[*said, *output], tools=[WEATHER], instructions="Be kind.", store=False
        )
        assert kept.output_text == "Sunny."
        assert (await here.interactions(4))[-1].parent_response_id == first.id
        with pytest.raises(BadRequestError) as caught:
            await api.responses.create(model=AGENT, input="Hi", previous_response_id=kept.id)
        assert caught.value.param == "previous_response_id"


async def test_what_is_stored_can_be_read_and_removed_by_its_owner_alone(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here, client(here) as api:
        made = await api.responses.create(model=AGENT, input="Say", metadata={"a": "b"})
        assert (await api.responses.retrieve(made.id)).model_dump() == made.model_dump()
        foreign = await here.http.get(
            f"/v1/responses/{made.id}", headers={"Authorization": "Bearer secret-other"}
        )
        assert foreign.status_code == 404
        await api.responses.delete(made.id)
        with pytest.raises(NotFoundError):
            await api.responses.retrieve(made.id)
        other = await api.responses.create(model=AGENT, input="Say")
        await here.http.delete(
            f"/v1/episodes/{other.episode_id}", headers={"Authorization": "Bearer secret-app"}
        )  # type: ignore[attr-defined]
        with pytest.raises(BadRequestError):
            await api.responses.create(model=AGENT, input="Hi", previous_response_id=other.id)


async def test_a_response_whose_episode_is_withdrawn_meanwhile_is_not_stored(tmp_path: Path) -> None:
    script = scripted({"Say": Reply("Hello.", first_s=0.3)})
    async with world(tmp_path, script=script) as here, client(here) as api:
        before = len(here.stub.seen)
        headers = {"X-Episode-Id": "mine"}
        running = asyncio.create_task(api.responses.create(model=AGENT, input="Say", extra_headers=headers))
        await until(lambda: len(here.stub.seen) > before)
        deleted = await here.http.delete("/v1/episodes/mine", headers=bearer())
        assert deleted.status_code == 200
        made = await running
        assert made.output_text == "Hello."
        with pytest.raises(NotFoundError):
            await api.responses.retrieve(made.id)


async def test_a_store_that_fails_is_a_503_that_may_be_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here:
        await here.gateway.writer.write(lambda conn: conn.exec_driver_sql("drop table responses"))
        url, body = "/v1/responses", {"model": AGENT, "input": "Say"}
        for response in (
            await here.http.post(url, json=body, headers=bearer()),
            await here.http.post(url, json=body | {"previous_response_id": "resp_1"}, headers=bearer()),
            await here.http.get(f"{url}/resp_1", headers=bearer()),
            await here.http.delete(f"{url}/resp_1", headers=bearer()),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (503, "storage")
            assert "retry-after" in response.headers


async def test_the_synchronous_client_and_raw_responses(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here:

        def talk() -> tuple[Any, str, str]:
            with OpenAI(base_url=f"{here.url}/v1", api_key="secret-app", max_retries=0) as api:
                raw = api.responses.with_raw_response.create(model=AGENT, input="Say")
                with api.responses.stream(model=AGENT, input="Say") as stream:
                    text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
                    final = stream.get_final_response()
                assert final.output_text == text
                return raw.parse(), raw.headers["x-episode-id"], text

        whole, episode, text = await asyncio.to_thread(talk)
        assert whole.output_text == text == TEXTS[0] and whole.episode_id == episode


async def test_a_cut_answer_is_incomplete_and_a_broken_one_failed(tmp_path: Path) -> None:
    async with world(tmp_path, script=SCRIPT) as here, client(here) as api:
        cut = await api.responses.create(model=AGENT, input="Long", max_output_tokens=3)
        assert (cut.status, cut.output_text) == ("incomplete", "abc")
        assert cut.incomplete_details and cut.incomplete_details.reason == "max_output_tokens"
        seen: list[Any] = []
        with pytest.raises(APIError):
            async for event in await api.responses.create(model=AGENT, input="Break", stream=True):
                seen.append(event)
        assert seen[-1].type == "response.failed" and seen[-1].response.error.code == "server_error"
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
            ({"input": []}, "input"),
            ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"input": "x", "background": True}, "background"),
            ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
        ]
        for body, param in wrong:
            response = await here.http.post(
                "/v1/responses", json={"model": AGENT, **body}, headers={"Authorization": "Bearer secret-app"}
            )
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_items_become_the_chat_messages_that_mean_the_same() -> None:
    body = ResponsesRequest.model_validate(
        {
            "model": "m",
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "I look."}],
                },
                {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "b", "arguments": "{"},
                {"type": "function_call_output", "call_id": "c1", "output": "one"},
            ],
            "tool_choice": {"type": "function", "name": "a"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        }
    )
    chat = as_chat(body, [{"role": "user", "content": "Before"}], own_messages(body))
    assert [(message.role, message.text()) for message in chat.messages] == [
        ("developer", "Be kind."),
        ("user", "Before"),
        ("user", "Hi"),
        ("assistant", "I look."),
        ("tool", "one"),
    ]
    calls = chat.messages[3].tool_calls or []
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("c1", "a", "{}"),
        ("c2", "b", "{"),
    ]
    assert chat.tool_choice == {"type": "function", "function": {"name": "a"}}
    assert chat.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}},
    }
