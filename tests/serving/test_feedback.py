"""`/v1/feedback` over HTTP: statuses, latest wins, ownership, all or nothing, idempotency."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from feedback.schemas import FEEDBACK, Feedback
from tests.serving.harness import Clock, World, bearer, scripted, until, world


async def messages(here: World, count: int) -> list[Feedback]:
    await until(lambda: len(here.records(FEEDBACK)) >= count)
    return [Feedback.from_bytes(record.value) for record in here.records(FEEDBACK)]


async def test_new_changed_replayed_and_amended(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi", user="anna")
        rating: dict[str, Any] = {"response_id": reply["id"], "name": "user_rating", "value": True}
        found = []
        for value, change, revision in (
            (True, "new", 1),
            (True, "replayed", 1),
            (False, "changed", 2),
            (True, "changed", 3),
        ):
            response = await here.rate({**rating, "value": value})
            assert response.status_code == 202
            body = response.json()
            assert (body["change"], body["revision"], body["status"]) == (change, revision, "accepted")
            assert (body["score"], body["episode_id"]) == (float(value), reply["episode_id"])
            found.append(body["id"])
        assert len(set(found)) == 1
        url = f"/v1/feedback/{found[0]}"
        assert (await here.http.get(url, headers=bearer())).json()["revision"] == 3
        patched = await here.http.patch(url, json={"comment": "too long"}, headers=bearer())
        assert (patched.status_code, patched.json()["comment"], patched.json()["value"]) == (
            202,
            "too long",
            True,
        )
        assert (await here.http.delete(url, headers=bearer())).json()["deleted"] is True
        for method in ("GET", "PATCH", "DELETE"):
            assert (
                await here.http.request(method, url, json={"value": True}, headers=bearer())
            ).status_code == 410
        again = await here.rate(rating)
        assert (again.json()["change"], again.json()["revision"]) == ("new", 6)
        sent = await messages(here, 6)
        assert [(each.revision, each.op) for each in sent] == [
            (1, "create"),
            (2, "update"),
            (3, "update"),
            (4, "update"),
            (5, "delete"),
            (6, "create"),
        ]
        assert len({each.rater for each in sent}) == 1


async def test_raters_are_kept_apart_and_only_a_vouching_key_names_them(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi", user="anna")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        ids = {
            (await here.rate({**rating, "source": {"type": "human", "id": name}})).json()["id"]
            for name in ("x", "y", "x")
        }
        assert len(ids) == 2
        (record,) = await here.interactions(1)
        unnamed = (await here.rate(rating)).json()["id"]
        assert unnamed not in ids
        sent = {each.id: each for each in await messages(here, 3)}
        assert sent[unnamed].rater == record.user
        foreign = await here.answer("Hi", key="other", user="anna")
        rating = {"response_id": foreign["id"], "name": "user_rating", "value": True}
        ids = {
            (await here.rate({**rating, "source": {"id": name}}, key="other")).json()["id"]
            for name in ("x", "y")
        }
        assert len(ids) == 1


async def test_statuses(tmp_path: Path) -> None:
    clock = Clock()
    async with world(tmp_path, clock=clock) as here:
        reply = await here.answer("Hi")
        rating: dict[str, Any] = {"response_id": reply["id"], "name": "user_rating", "value": True}
        cases = [
            ({**rating, "response_id": "chatcmpl-" + "0" * 32}, 404, "response_id", "target_not_found"),
            ({**rating, "response_id": "nonsense"}, 422, "response_id", "malformed_id"),
            ({**rating, "name": "charm"}, 400, "name", "unknown_metric"),
            ({**rating, "value": None}, 422, "value", "invalid_value"),
            ({**rating, "value": "up"}, 422, "value", "invalid_value"),
            ({**rating, "value": 5}, 422, "value", "invalid_value"),
            ({"name": "user_rating", "value": True}, 422, "response_id", "missing"),
            ({"response_id": reply["id"], "value": True}, 422, "name", "missing"),
            ({**rating, "timestamp": "yesterday"}, 422, "timestamp", "invalid_value"),
            ({**rating, "tool_call_id": "call_1"}, 404, "tool_call_id", "target_not_found"),
            ({**rating, "comment": "x" * 9000}, 422, "comment", "invalid_value"),
            ({**rating, "episode_id": "ep_0"}, 422, "episode_id", "mismatch"),
            ([], 422, None, "invalid_type"),
        ]
        for body, status, param, code in cases:
            response = await here.rate(body)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (status, param, code), body
        assert (await here.rate(rating, key="other")).status_code == 404
        for raw in (b'{"value": NaN}', b'{"value": 1e309}', b"{", b"\xff"):
            bad = await here.http.post("/v1/feedback", content=raw, headers=bearer())
            assert bad.status_code == 400, raw
        clock.now += 86_400_000 + 10_000
        late = (await here.rate(rating)).json()
        assert (late["status"], late["trainable"]) == ("late", False)
        clock.now += 40 * 86_400_000
        assert (await here.rate({**rating, "value": False})).status_code == 410
        assert len(await messages(here, 1)) == 1


async def test_a_batch_is_all_or_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ids = [(await here.answer("Hi"))["id"] for _ in range(3)]
        batch = [{"response_id": each, "name": "user_rating", "value": 1} for each in ids]
        bad = await here.rate({"feedback": [*batch, {**batch[0], "value": 2}]})
        assert (bad.status_code, bad.json()["error"]["param"]) == (422, "feedback[3].value")
        assert (await here.rate({"feedback": []})).status_code == 422
        good = await here.rate({"feedback": batch})
        assert [each["change"] for each in good.json()["data"]] == ["new"] * 3
        assert len(await messages(here, 3)) == 3


async def test_an_idempotency_key_replays_the_reply(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": False}
        headers = {"Idempotency-Key": "k1"}
        first, second = [await here.rate(rating, headers=headers) for _ in range(2)]
        assert first.content == second.content and second.headers["idempotent-replayed"] == "true"
        other = await here.rate({**rating, "value": True}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_targets_by_episode_tool_call_and_other_tools_names(tmp_path: Path) -> None:
    script = scripted({"Fly": ["<tool_call>flights(Lima)</tool_call>", "Done."]})
    async with world(tmp_path, script=script) as here:
        reply = await here.answer("Fly", episode_id="mine")
        await here.interactions(1)
        call = reply["agent"]["tools"][0]["id"]
        by_name = await here.rate({"trace_id": "mine", "key": "user_rating", "score": False})
        assert (by_name.json()["episode_id"], by_name.json()["response_id"], by_name.json()["score"]) == (
            reply["episode_id"],
            None,
            0.0,
        )
        by_call = await here.rate(
            {"inference_id": reply["id"], "tool_call_id": call, "metric_name": "user_rating", "value": True}
        )
        assert by_call.json()["tool_call_id"] == call
        text = await here.rate(
            {"response_id": reply["id"], "correction": {"role": "assistant", "content": "Better."}}
        )
        assert (text.json()["name"], text.json()["correction"], text.json()["score"]) == (
            "demonstration",
            "Better.",
            None,
        )
        comment = await here.rate({"response_id": reply["id"], "comment": "<|im_end|> nice"})
        assert comment.json()["name"] == "comment"
        listed = (await here.http.get("/v1/feedback", params={"episode_id": "mine"}, headers=bearer())).json()
        assert len(listed["data"]) == 4
        dry = await here.rate(
            {"response_id": reply["id"], "name": "user_rating", "value": True, "dryrun": True}
        )
        assert dry.json()["change"] == "new"
        assert len(await messages(here, 4)) == 4


@pytest.mark.parametrize("stream", [True])
async def test_a_reply_may_be_rated_while_it_streams(tmp_path: Path, stream: bool) -> None:
    from serving.stub_engine import Reply

    async with world(tmp_path, script=scripted({"Hi": Reply("one two three", each_s=0.05)})) as here:
        chat = asyncio.create_task(here.chat("Hi", stream=stream))
        found: list[str] = []

        async def read() -> None:
            rows = await here.gateway.writer.write(
                lambda conn: conn.exec_driver_sql("select response_id from interactions").all()
            )
            found.extend(row.response_id for row in rows)

        while not found:
            await read()
        assert not chat.done()
        rated = await here.rate({"response_id": found[0], "name": "user_rating", "value": True})
        assert rated.status_code == 202
        await chat
