"""Engines that fail, stall or lie; clients that leave; a bus that is down; a gateway that is killed."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from feedback.bus import MemoryBus
from feedback.schemas import Status
from serving.engines.stub.script import Lie, Reply
from serving.engines.stub.server import StubEngine
from serving.episodes import OPEN
from tests.serving.harness import AGENT, BASE, Clock, bearer, content, events, scripted, until, world
from tests.serving.tiny import tiny_tokenizer

SLOW = Reply("one two three four five six seven eight nine ten", each_s=0.05)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_engines_work_within_a_second(
    tmp_path: Path, stream: bool
) -> None:
    async with world(tmp_path, script=scripted({"Hi": SLOW})) as here:
        before = len(here.stub.seen)
        left = asyncio.create_task(here.chat("Hi", stream=stream))
        await until(lambda: len(here.stub.seen) > before and here.stub.seen[-1].sent > 5)
        at = time.monotonic()
        left.cancel()
        await until(lambda: here.stub.seen[-1].aborted_at is not None, within_s=3)
        assert here.stub.seen[-1].aborted_at - at < 1.0  # type: ignore[operator]
        (record,) = await here.interactions(1)
        assert record.status is Status.ABORTED
        (turn,) = record.turns
        assert turn.stop_reason == "abort" and turn.flaw is None
        assert turn.raw_text.startswith("one") and turn.raw_text.startswith(turn.shown_text)
        assert here.gateway.adapters.in_flight() == 0
        if not stream:
            assert turn.shown_text == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_a_tool_runs_ends_it_and_starts_no_round(
    tmp_path: Path, stream: bool
) -> None:
    agent = {"tools": ["tests.serving.slow:wait"], "limits": {"tool_s": 30, "wall_s": 60}}
    script = scripted({"Hi": ["<tool_call>wait(x)</tool_call>", "Done."]})
    async with world(tmp_path, script=script, agent=agent) as here:
        before = len(here.stub.seen)
        left = asyncio.create_task(here.chat("Hi", stream=stream))
        await until(lambda: len(here.stub.seen) > before and here.stub.seen[-1].finished)
        left.cancel()
        await until(lambda: here.gateway.adapters.in_flight() == 0, within_s=3)
        (record,) = await here.interactions(1)
        assert record.status is Status.ABORTED and record.turns[0].tool_results == ()
        assert len(here.stub.seen) == before + 1


async def test_text_that_was_not_sent_is_not_recorded_as_seen(tmp_path: Path) -> None:
    async with world(tmp_path, script=scripted({"Hi": SLOW})) as here:
        request = here.http.build_request(
            "POST",
            "/v1/chat/completions",
            json={"model": AGENT, "messages": [{"role": "user", "content": "Hi"}], "stream": True},
            headers=bearer(),
        )
        response = await here.http.send(request, stream=True)
        got = b""
        async for piece in response.aiter_bytes():
            got += piece
            if b"two" in got.replace(b'"}', b""):
                break
            if got.count(b"data:") > 6:
                break
        await response.aclose()
        (record,) = await here.interactions(1)
        seen = content(events(got))
        assert seen and record.turns[0].shown_text.startswith(seen)
        assert len(record.turns[0].shown_text) < len(record.turns[0].raw_text) + 1
        again = await here.answer(
            [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": seen},
                {"role": "user", "content": "Go on"},
            ]
        )
        (later,) = [each for each in await here.interactions(2) if each.response_id == again["id"]]
        assert "rewritten" in later.flags and again["choices"][0]["message"]["content"] == "Hello."


async def test_engine_failures_before_the_first_byte_are_statuses(tmp_path: Path) -> None:
    answers = {
        "busy": Reply(status=429),
        "down": Reply(status=503),
        "bad": Reply(status=400),
        "broken": Reply(status=500),
    }
    async with world(tmp_path, script=scripted(answers)) as here:
        for message, status, retry in (
            ("busy", 429, True),
            ("bad", 400, False),
            ("broken", 502, False),
            ("down", 503, True),
        ):
            for stream in (False, True):
                await until(lambda: here.gateway.adapters.ready() is None)
                response = await here.chat(message, stream=stream)
                assert response.status_code == status, (message, response.text)
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                assert ("retry-after" in response.headers) is retry
        records = await here.interactions(8)
        assert {record.status for record in records} == {Status.FAILED}


@pytest.mark.parametrize(
    "reply", [Reply("one two three", break_after=4), Reply("one two three", error_after=4)]
)
async def test_after_the_first_byte_a_failure_is_an_error_frame(tmp_path: Path, reply: Reply) -> None:
    async with world(tmp_path, script=scripted({"Hi": reply})) as here:
        stream = events((await here.chat("Hi", stream=True)).content)
        assert stream[-1]["error"]["code"] == "engine_failed"
        assert "[DONE]" not in stream
        assert (await here.chat("Hi")).status_code == 502
        for record in await here.interactions(2):
            assert record.status is Status.FAILED
            assert len(record.turns[0].token_ids) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_that_breaks_before_its_first_token_goes_on_at_another_engine(
    tmp_path: Path, stream: bool
) -> None:
    """vLLM sends its headers at once, so that a break after them is what a dying engine looks like."""
    dying = scripted({"Hi": Reply("one two", break_after=0)})
    stubs = [StubEngine(BASE, tiny_tokenizer(), script) for script in (dying, scripted({"Hi": "one two"}))]
    async with world(tmp_path, stubs=stubs) as here:
        await until(lambda: all(not replica.problem for replica in here.gateway.adapters.replicas))
        response = await here.chat("Hi", stream=stream)
        assert response.status_code == 200
        assert (await here.interactions(1))[0].status is Status.COMPLETED
        assert any(seen.aborted_at or not seen.finished for seen in here.stubs[0].seen)


@pytest.mark.parametrize(
    ("lie", "flaw"),
    [("short_logprobs", "length_mismatch"), ("null_logprob", None), ("nan_logprob", None)],
)
async def test_a_turn_that_is_not_exact_is_kept_and_flagged(
    tmp_path: Path, lie: Lie, flaw: str | None
) -> None:
    async with world(tmp_path, script=scripted({"Hi": Reply("Hello.", lie=lie)})) as here:
        assert (await here.answer("Hi"))["choices"][0]["message"]["content"] == "Hello."
        (record,) = await here.interactions(1)
        assert record.turns[0].flaw == (flaw or "non_finite_logprob")


@pytest.mark.parametrize("lie", ["no_ids", "other_model", "other_prompt", "abort"])
async def test_an_engine_that_lies_is_not_believed(tmp_path: Path, lie: Lie) -> None:
    async with world(tmp_path, script=scripted({"Hi": Reply("Hello.", lie=lie)})) as here:
        assert (await here.chat("Hi")).status_code == 502


async def test_the_gateway_starts_before_its_engine_and_survives_its_restart(tmp_path: Path) -> None:
    stub = StubEngine(BASE, tiny_tokenizer(), scripted({}), down=True)
    async with world(tmp_path, stubs=[stub], ready=False) as here:
        assert (await here.http.get("/healthz")).status_code == 200
        ready = await here.http.get("/readyz")
        assert ready.status_code == 503 and ready.json()["problem"]
        refused = await here.chat("Hi")
        assert refused.status_code == 503 and "retry-after" in refused.headers
        stub.down = False
        await until(lambda: here.gateway.adapters.ready() is None)
        assert (await here.chat("Hi")).status_code == 200
        assert (await here.http.get("/readyz")).status_code == 200


async def test_engines_started_wrongly_are_refused_with_the_flag_to_set(tmp_path: Path) -> None:
    for number, (wrong, flag) in enumerate(
        [({"raw_logprobs": True}, "--logprobs-mode"), ({"max_loras": 2}, "--max-loras 5")]
    ):
        stub = StubEngine(BASE, tiny_tokenizer(), scripted({}), **wrong)  # type: ignore[arg-type]
        home = tmp_path / str(number)
        home.mkdir()
        async with world(home, stubs=[stub], ready=False) as here:
            await until(lambda flag=flag: flag in (here.gateway.adapters.ready() or ""))  # type: ignore[misc]
            assert flag in (await here.http.get("/readyz")).json()["problem"]


async def test_chat_and_feedback_go_on_while_the_bus_is_down(tmp_path: Path) -> None:
    bus = MemoryBus()
    bus.down = True
    async with world(tmp_path, bus=bus) as here:
        body = await here.answer("Hi")
        rated = await here.rate({"response_id": body["id"], "name": "user_rating", "value": True})
        assert rated.status_code == 202
        await until(lambda: here.gateway.outbox.depth() == 2)
        assert (await here.http.get("/readyz")).json()["spool"]["waiting"] == 2
        bus.down = False
        (record,) = await here.interactions(1)
        assert record.response_id == body["id"]
        await until(lambda: here.gateway.outbox.depth() == 0)


async def test_a_full_spool_refuses_feedback_and_never_chat(tmp_path: Path) -> None:
    bus = MemoryBus()
    bus.down = True
    async with world(tmp_path, bus=bus, settings={"outbox_bound": 1}) as here:
        first = await here.answer("Hi")
        assert (await here.answer("Hi"))["choices"]
        rated = await here.rate({"response_id": first["id"], "name": "user_rating", "value": True})
        assert rated.status_code == 503 and rated.json()["error"]["code"] == "spool_full"
        assert "retry-after" in rated.headers
        assert (
            b'ratchet_recording_lost_total{topic="ratchet.interactions"} 1.0'
            in (await here.http.get("/metrics")).content
        )


async def test_what_a_killed_gateway_had_opened_is_recorded_once(tmp_path: Path) -> None:
    """The response id was durable before its first byte; the record is made by the next process."""
    clock = Clock()
    async with world(tmp_path, script=scripted({"Hi": SLOW}), clock=clock) as here:
        gateway = here.gateway
        original = gateway.recorder.close
        async with here.http.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": AGENT, "messages": [{"role": "user", "content": "Hi"}], "stream": True},
            headers=bearer(),
        ) as response:
            assert response.status_code == 200
            rows = await gateway.writer.write(
                lambda conn: conn.exec_driver_sql("select response_id, status from interactions").all()
            )
            assert [row.status for row in rows] == [OPEN]
            response_id = rows[0].response_id
            # The process dies here: nothing after this line reaches the database.
            gateway.writer.stop()
        assert original is not None
    clock.now += 1000
    async with world(tmp_path, clock=clock, bus=MemoryBus()) as again:
        (record,) = await again.interactions(1)
        assert (record.response_id, record.status, record.flags) == (response_id, Status.FAILED, ("crashed",))
        rated = await again.rate({"response_id": response_id, "name": "user_rating", "value": False})
        assert rated.status_code == 202


async def test_a_keep_alive_comment_is_sent_while_a_tool_or_the_engine_is_slow(tmp_path: Path) -> None:
    slow = Reply("one two", each_s=0.2)
    async with world(tmp_path, script=scripted({"Hi": slow}), settings={"keep_alive_s": 0.05}) as here:
        body = (await here.chat("Hi", stream=True)).content
        assert body.count(b": keep-alive\n\n") >= 2
        assert content(events(body)) == "one two"


async def test_other_clients_are_served_while_one_engine_stalls(tmp_path: Path) -> None:
    async with world(
        tmp_path, script=scripted({"stall": Reply("one two", stall_after=1)}), settings={"stall_s": 0.5}
    ) as here:
        stalled = asyncio.create_task(here.chat("stall"))
        assert (await here.chat("Hi")).status_code == 200
        response: httpx.Response = await stalled
        assert response.status_code == 502


async def test_an_engine_that_is_only_slow_to_list_its_models_keeps_its_traffic(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.stub.models_s = 6.0  # over the look's own limit of 5 s
        replica = here.gateway.adapters.replicas[0]
        looked = asyncio.create_task(replica.refresh())
        assert (await here.chat("Hi")).status_code == 200
        await looked
        assert replica.problem is None and (await here.chat("Hi")).status_code == 200


async def test_a_kept_connection_that_the_engine_closed_costs_nothing(tmp_path: Path) -> None:
    """vLLM closes idle connections after 5 s; the request that meets such a one is sent again."""
    async with world(tmp_path) as here:
        for _ in range(3):
            here.stub.hang_up_once = True
            assert (await here.chat("Hi")).status_code == 200
            assert not here.stub.hang_up_once
