"""The chat route over real HTTP: shapes, streaming, tools, exact recording."""

import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

from openai import AsyncOpenAI

from feedback.schemas import Status
from serving.engines.stub.script import Reply
from tests.serving.harness import AGENT, BASE, bearer, content, events, scripted, world
from tests.serving.tiny import tiny_tokenizer

TOOLS = scripted(
    {
        "Fly me to Lima": ["<tool_call>flights(Lima)</tool_call>", "Flight 24 Delta."],
        "Say é👩‍💻": "Grüße 👩‍💻 é",
    }
)


async def test_answers_in_openai_shape(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        response = await here.chat("Hi")
        body = response.json()
        assert response.status_code == 200
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["model"] == AGENT
        assert body["id"].startswith("chatcmpl-")
        assert body["agent"] == {
            "episode_id": body["episode_id"],
            "adapter": BASE,
            "arm": "champion",
            "steps": 1,
            "tools": [],
        }
        assert response.headers["x-episode-id"] == body["episode_id"]
        assert response.headers["x-adapter-version"] == BASE
        assert response.headers["x-request-id"].startswith("req_")
        used = body["usage"]
        assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"] > 0


async def test_streams_the_same_text_as_it_answers_whole(tmp_path: Path) -> None:
    async with world(tmp_path, script=TOOLS) as here:
        for message in ("Hi", "Fly me to Lima", "Say é👩‍💻"):
            whole = await here.answer(message)
            response = await here.chat(message, stream=True, stream_options={"include_usage": True})
            found = events(response.content)
            assert content(found) == whole["choices"][0]["message"]["content"]
            assert found[-1] == "[DONE]"
            assert found[-2]["choices"] == [] and found[-2]["usage"]["total_tokens"] > 0
            assert found[-3]["choices"][0]["finish_reason"] == "stop"
            assert len({event["id"] for event in found[:-1]}) == 1
            assert all(event["usage"] is None for event in found[:-2])


async def test_runs_tools_inside_and_shows_only_the_answer(tmp_path: Path) -> None:
    async with world(tmp_path, script=TOOLS) as here:
        body = await here.answer("Fly me to Lima")
        assert body["choices"][0]["message"]["content"] == "Flight 24 Delta."
        assert "tool_calls" not in body["choices"][0]["message"]
        (tool,) = body["agent"]["tools"]
        assert (tool["name"], tool["arguments"], tool["fault"]) == ("flights", "Lima", None)
        assert body["agent"]["steps"] == 2
        (record,) = await here.interactions(1)
        first, second = record.turns
        assert first.tool_results[0].content == tool["result"]
        assert (
            second.prompt_ids[: len(first.prompt_ids) + len(first.token_ids)]
            == first.prompt_ids + first.token_ids
        )
        assert second.shown_text == "Flight 24 Delta." and second.raw_text == "Flight 24 Delta.<|im_end|>"
        assert record.status is Status.COMPLETED


async def test_records_exactly_what_the_engine_saw_and_sampled(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        body = await here.answer("Hi", user="anna", temperature=0.7)
        (record,) = await here.interactions(1)
        (turn,) = record.turns
        seen = next(each for each in reversed(here.stub.seen) if each.params.get("temperature") == 0.7)
        assert list(turn.prompt_ids) == seen.prompt
        assert turn.flaw is None
        assert len(turn.logprobs) == len(turn.token_ids) > 0
        assert turn.logprobs[0] == here.stub.logprob(BASE, turn.token_ids[0], 0.7)
        assert (record.response_id, record.episode_id) == (body["id"], body["episode_id"])
        assert record.sampling.temperature == 0.7
        assert record.user_text == "Hi" and record.user is not None and "anna" not in record.user
        assert record.index == 0 and record.parent_response_id is None


async def test_extends_the_ids_of_a_history_that_is_sent_back(tmp_path: Path) -> None:
    async with world(tmp_path, script=TOOLS) as here:
        first = await here.answer("Fly me to Lima")
        history = [
            {"role": "user", "content": "Fly me to Lima"},
            {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ]
        second = await here.answer(history)
        assert second["episode_id"] == first["episode_id"] and second["id"] != first["id"]
        one, two = await here.interactions(2)
        before = one.turns[-1].prompt_ids + one.turns[-1].token_ids
        assert two.turns[0].prompt_ids[: len(before)] == before
        assert two.flags == () and two.index == 1 and two.parent_response_id == first["id"]


async def test_sampled_ids_are_used_as_they_are_where_their_text_would_be_encoded_otherwise(
    tmp_path: Path,
) -> None:
    tokenizer = tiny_tokenizer()

    def spelled(text: str) -> Reply:
        """Letter by letter between the control tokens, as a model may sample it."""
        parts = re.split(r"(<[^>]*>)", text + "<|im_end|>")
        letters = [[part] if part.startswith("<") else list(part) for part in parts]
        return Reply(ids=tuple(tokenizer.token_to_id(piece) for part in letters for piece in part), chunk=2)

    script = scripted(
        {"Hi": [spelled("<tool_call>flights(thinner)</tool_call>"), spelled("the")], "More": "Yes."}
    )
    async with world(tmp_path, script=script) as here:
        first = await here.answer("Hi")
        assert first["choices"][0]["message"]["content"] == "the" and len(tokenizer.encode("the").ids) == 1
        history = [
            {"role": "user", "content": "Hi"},
            first["choices"][0]["message"],
            {"role": "user", "content": "More"},
        ]
        await here.answer(history)
        one, two = await here.interactions(2)
        assert len(one.turns[1].token_ids) == 4
        for before, after in pairwise([*one.turns, *two.turns]):
            ids = before.prompt_ids + before.token_ids
            assert after.prompt_ids[: len(ids)] == ids
        assert list(two.turns[0].prompt_ids) == here.stub.seen[-1].prompt


async def test_the_official_client_works_with_and_without_streaming(tmp_path: Path) -> None:
    async with world(tmp_path, script=TOOLS) as here:
        client = AsyncOpenAI(base_url=f"{here.url}/v1", api_key="secret-app", max_retries=0)
        whole = await client.chat.completions.create(
            model=AGENT, messages=[{"role": "user", "content": "Hi"}]
        )
        assert whole.choices[0].message.content == "Hello."
        text = ""
        async for chunk in await client.chat.completions.create(
            model=AGENT, messages=[{"role": "user", "content": "Fly me to Lima"}], stream=True
        ):
            text += chunk.choices[0].delta.content or ""
            assert chunk.episode_id.startswith("ep_")  # type: ignore[attr-defined]
        assert text == "Flight 24 Delta."
        assert [model.id async for model in client.models.list()] == [AGENT]
        await client.close()


async def test_a_stop_string_cuts_what_is_shown_and_keeps_what_was_sampled(tmp_path: Path) -> None:
    async with world(tmp_path, script=scripted({}, Reply("One, two, three. Four.", chunk=3))) as here:
        for stream in (False, True):
            response = await here.chat("Count", stop=[", th"], stream=stream)
            text = (
                content(events(response.content))
                if stream
                else response.json()["choices"][0]["message"]["content"]
            )
            assert text == "One, two"
        for record in await here.interactions(2):
            assert record.turns[0].shown_text == "One, two"
            assert record.turns[0].raw_text.startswith("One, two, th")
            assert record.turns[0].flaw is None


async def test_bad_requests_name_the_field(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bad = [
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x"}], "temperature": 3}, "temperature"),
            ({"messages": [{"role": "user", "content": "x"}], "stop": [""]}, "stop"),
            ({"messages": [{"role": "user", "content": "x"}], "n": 0}, "n"),
            ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 21}, "top_logprobs"),
            ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"x": 1}}, "logit_bias"),
            ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"-5": 1}}, "logit_bias"),
            ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": 1e300}}, "logit_bias"),
            ({"messages": [{"role": "user", "content": "x"}], "seed": 2**63}, "seed"),
            (
                {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}},
                "response_format.type",
            ),
            (
                {
                    "messages": [{"role": "user", "content": "x"}],
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "a", "schema": {"type": "nothing"}},
                    },
                },
                "response_format.json_schema.schema",
            ),
        ]
        for body, param in bad:
            response = await here.http.post(
                "/v1/chat/completions", json={"model": AGENT, **body}, headers=bearer()
            )
            error = response.json()["error"]
            assert response.status_code == 400, body
            assert set(error) == {"message", "type", "param", "code"}
            assert error["param"] == param
        unknown = await here.http.post(
            "/v1/chat/completions",
            json={"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]},
            headers=bearer(),
        )
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert not here.records()


async def test_keys_and_scopes(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nobody = await here.http.post("/v1/chat/completions", json={})
        wrong = await here.http.post(
            "/v1/chat/completions", json={}, headers={"Authorization": "Bearer nope"}
        )
        assert nobody.status_code == wrong.status_code == 401
        assert nobody.json()["error"]["code"] == "invalid_api_key"
        assert (await here.chat("Hi", key="mute")).status_code == 403
        assert (await here.chat("Hi", headers={"X-Adapter-Arm": "champion"})).status_code == 403
        assert (await here.http.get("/v1/nothing", headers=bearer())).json()["error"]["code"] == "not_found"
        large = await here.http.post(
            "/v1/chat/completions", content=b"x" * (1024 * 1024 + 1), headers=bearer()
        )
        assert large.status_code == 413

        async def undeclared() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * 32768

        chunked = await here.http.post("/v1/chat/completions", content=undeclared(), headers=bearer())
        assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "body_too_large")
