"""What OpenAI's clients may ask of an answer, by the official client: several at once, scores, forced calls, JSON."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from serving.engines.stub.script import Reply, Script
from tests.serving.harness import AGENT, World, content, events, scripted, until, world
from tests.serving.loop.test_client_tools import WEATHER
from tests.serving.tiny import tiny_tokenizer
from tools.parse import OPEN

BOOK = {"type": "function", "function": {"name": "book", "parameters": {"properties": {"city": {}}}}}
BOOK_WISHED = {"type": "function", "function": {"name": "book"}}
TWO = "<tool_call>get_weather(Lima)</tool_call><tool_call>get_weather(Rome)</tool_call>"
JSON = {"type": "json_object"}


@asynccontextmanager
async def client(here: World) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{here.url}/v1", api_key="secret-app", max_retries=0) as made:
        yield made


def in_turn(*replies: Reply) -> Script:
    """One after the other for the user who says Hi; others (the gateway's own check) take none."""
    left = list(replies)
    tokenizer = tiny_tokenizer()

    def script(model: str, prompt: list[int]) -> Reply:
        return (
            left.pop(0)
            if left and "user\nHi" in tokenizer.decode(prompt, skip_special_tokens=False)
            else Reply("Ok.")
        )

    return script


async def ask(here: World, api: AsyncOpenAI, text: str, **options: Any) -> list[ChatCompletion]:
    """The same request twice, whole and streamed; the second is put together from its chunks by the client."""
    said: Any = [{"role": "user", "content": text}]
    here.clock.now += 1000
    whole = await api.chat.completions.create(model=AGENT, messages=said, **options)
    here.clock.now += 1000
    async with api.chat.completions.stream(model=AGENT, messages=said, **options) as stream:
        async for _ in stream:
            pass
        joined = await stream.get_final_completion()
    return [whole, ChatCompletion.model_validate(joined.model_dump())]


def body_of(answer: ChatCompletion) -> list[Any]:
    """What must not depend on streaming."""
    found = []
    for choice in answer.choices:
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]  # type: ignore[union-attr]
        scores = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
        content = choice.message.content or ""
        found.append((choice.index, content, calls, choice.finish_reason, [each.token for each in scores]))
    return found


async def test_several_answers_are_recorded_each_on_its_own(tmp_path: Path) -> None:
    texts = ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]
    script = in_turn(*(Reply(text, chunk=2) for text in texts))
    async with world(tmp_path, script=script) as here, client(here) as api:
        whole, streamed = await ask(here, api, "Hi", n=3, seed=7)
        for answer, some in ((whole, texts[:3]), (streamed, texts[3:])):
            assert {choice.message.content for choice in answer.choices} == set(some)
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
        records = await here.interactions(6)
        assert len({record.response_id for record in records}) == 6
        assert [record.index for record in records] == [0, 1, 2] * 2
        assert [record.flags for record in records[:3]] == [(), ("branch",), ("branch",)]
        assert sorted(str(seen.params["seed"]) for seen in here.stub.seen[-6:]) == [
            "7",
            "7",
            "8",
            "8",
            "9",
            "9",
        ]
        ids: list[str] = [choice.response_id for choice in whole.choices]  # type: ignore[attr-defined]
        by_id = {record.response_id: record for record in records}
        shown = [by_id[each].turns[0].shown_text for each in ids]
        assert shown == [choice.message.content for choice in whole.choices] and ids[0] == whole.id
        assert whole.usage and whole.usage.prompt_tokens == len(records[0].turns[0].prompt_ids)
        rated = await here.rate({"response_id": ids[2], "name": "user_rating", "value": True})
        assert rated.status_code == 202
        second: Any = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": whole.choices[1].message.content},
            {"role": "user", "content": "Go on"},
        ]
        await api.chat.completions.create(model=AGENT, messages=second)
        (*_, last) = await here.interactions(7)
        assert last.parent_response_id == ids[1] and last.episode_id == records[0].episode_id


async def test_a_failing_answer_fails_the_request_and_leaves_no_engine_at_work(tmp_path: Path) -> None:
    script = in_turn(Reply("x" * 190, each_s=0.1), Reply("y", status=500))
    async with world(tmp_path, script=script) as here:
        response = await here.chat("Hi", n=2)
        assert response.status_code == 502
        records = await here.interactions(2)
        assert {str(record.status) for record in records} == {"failed"}
        await until(lambda: all(seen.finished or seen.aborted_at for seen in here.stub.seen))


async def test_scores_of_the_shown_tokens_whole_and_streamed(tmp_path: Path) -> None:
    answers = {
        "Say": Reply("Grüße 👩‍💻 the end<tool_", chunk=3),
        "Fly": [Reply("<tool_call>flights(Lima)</tool_call>", chunk=2), Reply("Done.", chunk=1)],
        "Odd": Reply("ok", lie="infinite_top"),
    }
    async with world(tmp_path, script=scripted(answers)) as here, client(here) as api:
        for text, shown in (("Say", "Grüße 👩‍💻 the end<tool_"), ("Fly", "Done."), ("Odd", "ok")):
            whole, streamed = await ask(here, api, text, logprobs=True, top_logprobs=2)
            assert body_of(whole) == body_of(streamed)
            logprobs = whole.choices[0].logprobs
            assert logprobs is not None and logprobs.content is not None
            assert b"".join(bytes(each.bytes or ()) for each in logprobs.content).decode() == shown
            for each in logprobs.content:
                assert [other.token for other in each.top_logprobs][:1] == [each.token]
                assert len(each.top_logprobs) == 2 and each.logprob == each.top_logprobs[0].logprob
        plain = await api.chat.completions.create(
            model=AGENT, messages=[{"role": "user", "content": "Say"}], logprobs=True
        )
        assert plain.choices[0].logprobs and plain.choices[0].logprobs.content
        assert plain.choices[0].logprobs.content[0].top_logprobs == []
        records = await here.interactions(7)
        assert all(turn.flaw is None for record in records for turn in record.turns)
        assert {record.sampling.untrainable_reason() for record in records} == {None}


async def test_a_forced_call_is_made_and_makes_the_turn_untrainable(tmp_path: Path) -> None:
    answers = {"Book": Reply("book( Lima)", chunk=2), "Weather?": ["get_weather(Lima", "get_weather(Lima)"]}
    async with world(tmp_path, script=scripted(answers)) as here, client(here) as api:
        for choice, wished in (("required", "book|get_weather"), (BOOK_WISHED, "book")):
            for answer in await ask(here, api, "Book", tools=[WEATHER, BOOK], tool_choice=choice):
                assert body_of(answer) == [(0, "", [("book", '{"city": "Lima"}')], "tool_calls", [])]
            seen = here.stub.seen[-1]
            regex = seen.params["structured_outputs"]["regex"]
            assert [name for name in ("book", "get_weather") if name in regex] == wished.split("|")
            assert here.stub.tokenizer.decode(seen.prompt[-1:], skip_special_tokens=False) == OPEN
        records = await here.interactions(4)
        assert {record.sampling.untrainable_reason() for record in records} == {"tool_choice"}
        assert {record.turns[0].raw_text for record in records} == {"book( Lima)"}
        broken = await here.answer("Weather?", tools=[WEATHER], tool_choice="required")
        assert broken["choices"][0]["finish_reason"] == "tool_calls" and broken["agent"]["steps"] == 2


async def test_the_ids_after_a_forced_call_are_a_whole_turn(tmp_path: Path) -> None:
    script = scripted({"Book": ["book(Lima)", "Booked."]})
    async with world(tmp_path, script=script) as here:
        first = await here.answer("Book", tools=[BOOK], tool_choice="required")
        message = first["choices"][0]["message"]
        history = [
            {"role": "user", "content": "Book"},
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"},
        ]
        second = await here.answer(history, tools=[BOOK])
        assert second["choices"][0]["message"]["content"] == "Booked."
        text = here.stub.tokenizer.decode(here.stub.seen[-1].prompt, skip_special_tokens=False)
        assert (
            "assistant\n<tool_call>book(Lima)</tool_call><|im_end|>\n<|im_start|>tool\nok<|im_end|>" in text
        )
        _, two = await here.interactions(2)
        assert two.flags == () and two.sampling.untrainable_reason() is None


async def test_calls_that_may_not_be_made_are_answered_here(tmp_path: Path) -> None:
    answers = {"Both": [TWO, "Sunny."], "One": ["<tool_call>get_weather(Lima)</tool_call>", "As you like."]}
    async with world(tmp_path, script=scripted(answers)) as here, client(here) as api:
        for answer in await ask(here, api, "One", tools=[WEATHER], tool_choice="none"):
            assert body_of(answer) == [(0, "As you like.", [], "stop", [])]
        (record, _) = await here.interactions(2)
        assert record.turns[0].tool_results[0].fault == "limit"
        for answer in await ask(here, api, "Both", tools=[WEATHER], parallel_tool_calls=False):
            (_, _, calls, finish, _) = body_of(answer)[0]
            assert (calls, finish) == ([("get_weather", '{"city": "Lima"}')], "tool_calls")
        for answer in await ask(here, api, "Both", tools=[WEATHER]):
            assert len(body_of(answer)[0][2]) == 2
        records = await here.interactions(6)
        assert {each.sampling.untrainable_reason() for each in records} == {None}
        assert [len(each.turns[0].tool_results) for each in records] == [1, 1, 1, 1, 0, 0]


async def test_a_json_answer_is_bound_and_tools_run_before_it(tmp_path: Path) -> None:
    answers = {
        "Fly": ["<tool_call>flights(Lima)</tool_call>", '{"a": 1}'],
        "Say": '{"a": 2}',
    }
    async with world(tmp_path, script=scripted(answers)) as here, client(here) as api:
        for text, value in (("Fly", '{"a": 1}'), ("Say", '{"a": 2}')):
            for answer in await ask(here, api, text, response_format=JSON):
                assert body_of(answer) == [(0, value, [], "stop", [])]
            assert here.stub.seen[-1].params["response_format"] == JSON
        records = await here.interactions(4)
        assert [len(record.turns) for record in records] == [2, 2, 1, 1]
        assert {record.sampling.untrainable_reason() for record in records} == {"response_format"}
        free = [
            seen
            for seen in here.stub.seen
            if seen.params.get("temperature") and "Fly" in decoded(here, seen.prompt)
        ]
        assert "response_format" not in free[0].params


async def test_the_clients_bound_holds_over_all_turns(tmp_path: Path) -> None:
    answers = {
        "Fly": ["<tool_call>flights(Lima)</tool_call>", Reply("A long answer", chunk=4)],
        "Say": "abcdef",
    }
    async with world(tmp_path, script=scripted(answers)) as here:
        for name in ("max_tokens", "max_completion_tokens"):
            (whole, streamed) = [
                await here.chat("Say", stream=stream, **{name: 4}) for stream in (False, True)
            ]
            choice = whole.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("abcd", "length")
            found = events(streamed.content)
            assert (content(found), found[-2]["choices"][0]["finish_reason"]) == ("abcd", "length")
        here.clock.now += 1000
        await here.answer("Fly")
        call = len((await here.interactions(5))[-1].turns[0].token_ids)
        limited = await here.answer("Fly", max_tokens=call + 3)
        assert limited["usage"]["completion_tokens"] == call + 3
        assert limited["choices"][0]["finish_reason"] == "length"
        nothing = await here.answer("Fly", max_tokens=call)
        assert nothing["choices"][0]["finish_reason"] == "length"


async def test_an_agent_that_ignores_sampling_wishes_stays_trainable(tmp_path: Path) -> None:
    agent = {"sampling": {"temperature": 0.8, "client": "ignore"}}
    async with world(tmp_path, agent=agent) as here:
        answer = await here.answer(
            "Hi", tools=[WEATHER], tool_choice="required", response_format=JSON, temperature=0.1, top_p=0.5
        )
        assert answer["choices"][0]["message"]["content"] == "Hello."
        (record,) = await here.interactions(1)
        assert record.sampling.untrainable_reason() is None and record.sampling.temperature == 0.8


def decoded(here: World, prompt: list[int]) -> str:
    return here.stub.tokenizer.decode(prompt, skip_special_tokens=False)
