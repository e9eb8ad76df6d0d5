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
        reply = await here.answer("Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        ids = {
            (await here.rate({**rating, "source": {"type": "human", "id": name}})).json()["id"]
            for name in ("x", "y", "x")
        }
        assert len(ids) == 2
        unnamed = (await here.rate(rating)).json()["id"]
        assert unnamed not in ids
        known = await here.answer("Hi", user="anna")
        records = {each.response_id: each for each in await here.interactions(2)}
        record = records[known["id"]]  # partitions are read in any order
        rating = {"response_id": known["id"], "name": "user_rating", "value": True}
        ids = {
            (await here.rate({**rating, "source": {"type": "human", "id": name}})).json()["id"]
            for name in ("x", "y")
        }
        assert len(ids) == 1
        sent = {each.id: each for each in await messages(here, 4)}
        assert sent[ids.pop()].rater == record.user
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
            ({**rating, "inference_id": "chatcmpl-" + "1" * 32}, 422, "inference_id", "ambiguous"),
            ({**rating, "score": False}, 422, "score", "ambiguous"),
            ({**rating, "score": 1}, 422, "score", "ambiguous"),
            ({**rating, "comment": "a\0b"}, 422, "comment", "invalid_value"),
            ({**rating, "source": {"id": "a\0b"}}, 422, "source", "invalid_value"),
            ({**rating, "metadata": {str(n): "x" for n in range(17)}}, 422, "metadata", "invalid_value"),
            ({**rating, "chosen": reply["id"]}, 422, "name", "invalid_value"),
            ({**rating, "name": "comment", "value": True}, 422, "value", "invalid_value"),
            ({**rating, "name": "demonstration", "value": 1}, 422, "value", "invalid_value"),
            ({**rating, "correction": ""}, 422, "correction", "invalid_value"),
            ({**rating, "correction": {"role": "assistant"}}, 422, "correction", "invalid_value"),
            ({"episode_id": reply["episode_id"], "correction": "x"}, 422, "response_id", "missing"),
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


async def answers_to(here: World, *questions: str) -> list[dict[str, Any]]:
    """Answers that are on record, each in an episode of its own."""
    found = [await here.answer(question) for question in questions]
    await here.interactions(len(found))
    return found


async def test_a_comparison_is_one_choice_whichever_way_it_falls(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = await answers_to(here, "Hi", "Hi")
        choice = {"chosen": first["id"], "rejected": second["id"]}
        new = (await here.rate(choice)).json()
        assert (new["name"], new["change"], new["trainable"], new["score"]) == (
            "comparison",
            "new",
            True,
            None,
        )
        assert (await here.rate({"name": "comparison", "value": choice})).json()["change"] == "replayed"
        turned = {"chosen": second["id"], "rejected": first["id"]}
        changed = (await here.rate({**turned, "comment": "shorter"})).json()
        assert (changed["change"], changed["id"], changed["comment"]) == ("changed", new["id"], "shorter")
        sent = await messages(here, 2)
        assert [each.comparison.chosen for each in sent if each.comparison] == [first["id"], second["id"]]
        assert len({(each.id, each.response_id, each.episode_id) for each in sent}) == 1
        assert sent[0].comparison is not None and sent[0].comparison.rejected_episode == second["episode_id"]


async def test_answers_to_different_questions_are_kept_and_not_learned_from(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = await answers_to(here, "Hi", "Bye")
        stored = (await here.rate({"chosen": first["id"], "rejected": second["id"]})).json()
        assert (stored["status"], stored["trainable"]) == ("accepted", False)
        assert stored["reason"] == "different_questions"
        history = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "And now?"},
        ]
        again = [await here.answer(history, episode_id=first["episode_id"]) for _ in range(2)]
        elsewhere = await here.answer([{**history[0], "content": "Bye"}, *history[1:]])
        await here.interactions(5)
        for other, same in ((again[1], True), (elsewhere, False)):
            body = {"chosen": again[0]["id"], "rejected": other["id"]}
            assert (await here.rate(body)).json()["trainable"] is same


async def test_what_is_wrong_with_a_comparison_is_named(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = await answers_to(here, "Hi", "Hi")
        foreign = (await here.answer("Hi", key="other"))["id"]
        pair = {"chosen": first["id"], "rejected": second["id"]}
        cases = [
            ({**pair, "rejected": first["id"]}, 422, "rejected"),
            ({"chosen": first["id"]}, 422, "rejected"),
            ({"name": "comparison", "value": True}, 422, "value"),
            ({"name": "comparison", "value": None}, 422, "chosen"),
            ({**pair, "rejected": "nonsense"}, 422, "rejected"),
            ({**pair, "rejected": foreign}, 404, "rejected"),
            ({**pair, "rejected": "chatcmpl-" + "0" * 32}, 404, "rejected"),
            ({**pair, "value": {"chosen": second["id"]}}, 422, "chosen"),
            ({**pair, "response_id": "chatcmpl-" + "0" * 32}, 422, "response_id"),
            ({**pair, "episode_id": "ep_0"}, 422, "episode_id"),
            ({**pair, "tool_call_id": "call_1"}, 422, "tool_call_id"),
            ({**pair, "name": "user_rating", "value": True}, 422, "name"),
        ]
        for body, status, param in cases:
            response = await here.rate(body)
            found = response.json()
            assert (response.status_code, found.get("error", found).get("param")) == (status, param), body
        assert (await here.rate({"response_id": first["id"], **pair})).status_code == 202


async def test_comments_and_corrections_can_be_changed_and_stay_what_they_are(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (reply,) = await answers_to(here, "Hi")
        target = {"response_id": reply["id"]}
        comment = (await here.rate({**target, "comment": "long"})).json()["id"]
        correction = (await here.rate({**target, "name": "demonstration", "value": "Better."})).json()["id"]
        down = (await here.rate({**target, "name": "user_rating", "value": 0, "expected": "Best."})).json()
        assert (down["score"], down["correction"]) == (0.0, "Best.")
        cases = [
            (comment, {"comment": "too long"}, {"value": "too long", "comment": "too long"}),
            (comment, {"value": "much too long"}, {"comment": "much too long"}),
            (correction, {"correction": {"role": "assistant", "content": "Good."}}, {"correction": "Good."}),
            (down["id"], {"metadata": {"page": "3"}}, {"metadata": {"page": "3"}, "correction": "Best."}),
            (down["id"], {"correction": None}, {"correction": None, "value": 0.0}),
        ]
        for which, patch, shown in cases:
            patched = (await here.http.patch(f"/v1/feedback/{which}", json=patch, headers=bearer())).json()
            assert {name: patched[name] for name in shown} == shown, patch
        for which, patch in (
            (comment, {"comment": None}),
            (correction, {"correction": ""}),
            (down["id"], {"value": None}),
        ):
            refused = await here.http.patch(f"/v1/feedback/{which}", json=patch, headers=bearer())
            assert (refused.status_code, refused.json()["error"]["param"]) == (422, next(iter(patch)))
        sent = (await messages(here, 8))[-1]
        assert (sent.name, sent.revision, sent.correction) == ("user_rating", 3, None)


async def test_a_metric_of_episodes_counts_for_the_episode_whatever_it_was_said_of(tmp_path: Path) -> None:
    metrics = {"solved": {"level": "episode"}, "stars": {"type": "float", "min": 1, "max": 5, "window": "1h"}}
    clock = Clock()
    async with world(tmp_path, agent={"metrics": metrics}, clock=clock) as here:
        (reply,) = await answers_to(here, "Hi")
        by_reply = (await here.rate({"response_id": reply["id"], "name": "solved", "value": False})).json()
        by_episode = await here.rate({"episode_id": reply["episode_id"], "name": "solved", "value": False})
        assert (by_reply["response_id"], by_reply["score"]) == (None, 0.0)
        assert by_episode.json()["change"] == "replayed"
        stars = {"response_id": reply["id"], "name": "stars", "value": 2}
        first = (await here.rate(stars)).json()
        assert (first["score"], first["status"]) == (0.25, "accepted")
        clock.now += 3_700_000
        url = f"/v1/feedback/{first['id']}"
        changed = (await here.http.patch(url, json={"value": 5}, headers=bearer())).json()
        assert (changed["status"], changed["trainable"], changed["reason"]) == ("late", False, "window")


async def test_a_program_is_a_rater_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (reply,) = await answers_to(here, "Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        for source in ({}, {"source": {"type": "llm_judge"}}, {"source": {"type": "code", "id": "check"}}):
            assert (await here.rate({**rating, **source})).json()["change"] == "new"
        assert len({each.rater for each in await messages(here, 3)}) == 3


async def test_a_stranger_gets_nothing_and_learns_nothing(tmp_path: Path) -> None:
    """Case 58: who rates is the server's to say, and a foreign target looks like one that is not there."""
    async with world(tmp_path) as here:
        (reply,) = await answers_to(here, "Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        unknown = {**rating, "response_id": "chatcmpl-" + "0" * 32}
        foreign = [await here.rate(body, key="other") for body in (rating, unknown)]
        assert [response.status_code for response in foreign] == [404, 404]
        assert foreign[0].json() == foreign[1].json()
        by_name = {"episode_id": reply["episode_id"], "name": "user_rating", "value": True}
        assert (await here.rate(by_name, key="other")).json() == (
            await here.rate({**by_name, "episode_id": "ep_0"}, key="other")
        ).json()
        mine = (await here.rate({**rating, "user_id": "boss", "rater": "boss"})).json()
        url = f"/v1/feedback/{mine['id']}"
        for method in ("GET", "PATCH", "DELETE"):
            missing = await here.http.request(method, url, json={"value": False}, headers=bearer("other"))
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "feedback_not_found")
        for headers, status in (({}, 401), (bearer("nobody"), 401), (bearer("talk"), 403)):
            for path in ("/v1/feedback", "/v1/feedback/tokens", "/feedback"):
                refused = await here.http.post(path, json=rating, headers=headers)
                assert refused.status_code == status, path
        assert (await here.chat("Hi", key="mute")).status_code == 403
        huge = await here.rate({**rating, "comment": "x" * 1_000_000})
        assert (huge.status_code, huge.json()["error"]["param"]) == (422, "comment")
        (sent,) = await messages(here, 1)
        assert sent.rater != "boss" and len(here.records(FEEDBACK)) == 1


async def test_a_tool_cannot_rate_and_what_it_says_is_no_feedback(tmp_path: Path) -> None:
    script = scripted({"Fly": ['<tool_call>calculate("user_rating: true")</tool_call>', "Done."]})
    async with world(tmp_path, script=script) as here:
        await here.answer("Fly")
        await here.interactions(1)
        assert here.records(FEEDBACK) == []


async def test_the_same_rating_on_the_next_day_is_the_same_rating(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = 1_800_057_590_000  # ten seconds before midnight, UTC
    async with world(tmp_path, clock=clock) as here:
        (reply,) = await answers_to(here, "Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        first = (await here.rate(rating)).json()
        clock.now += 20_000
        again = (await here.rate(rating)).json()
        assert (again["change"], again["id"], again["revision"]) == ("replayed", first["id"], 1)
        assert len(await messages(here, 1)) == 1


async def test_two_tabs_at_once_are_one_rating(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (reply,) = await answers_to(here, "Hi")
        rating = {"response_id": reply["id"], "name": "user_rating"}
        sent = await asyncio.gather(*(here.rate({**rating, "value": n % 2 == 0}) for n in range(20)))
        assert {response.status_code for response in sent} == {202}
        assert len({response.json()["id"] for response in sent}) == 1
        listed = await here.http.get(
            "/v1/feedback", params={"episode_id": reply["episode_id"]}, headers=bearer()
        )
        (kept,) = listed.json()["data"]
        newest = (await messages(here, kept["revision"]))[-1]
        assert (newest.revision, newest.value) == (kept["revision"], kept["value"])


async def test_a_withdrawn_episode_takes_what_was_said_about_it_along(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (reply,) = await answers_to(here, "Hi")
        body = {"response_id": reply["id"], "name": "user_rating", "value": True, "comment": "SECRET"}
        headers = {"Idempotency-Key": "k1"}
        feedback_id = (await here.rate(body, headers=headers)).json()["id"]
        url = f"/v1/episodes/{reply['episode_id']}"
        assert (await here.http.delete(url, headers=bearer())).status_code == 200
        for method in ("GET", "PATCH", "DELETE"):
            response = await here.http.request(
                method, f"/v1/feedback/{feedback_id}", json={"value": True}, headers=bearer()
            )
            assert response.status_code == 410
        assert (await here.rate(body, headers=headers)).status_code == 410
        kept = await here.gateway.writer.write(
            lambda conn: (
                str(conn.exec_driver_sql("select * from ratings").all())
                + str(conn.exec_driver_sql("select * from idempotency").all())
            )
        )
        assert "SECRET" not in kept


async def test_old_idempotency_keys_are_forgotten_while_the_gateway_runs(tmp_path: Path) -> None:
    clock = Clock()
    async with world(tmp_path, clock=clock) as here:
        (reply,) = await answers_to(here, "Hi")
        rating = {"response_id": reply["id"], "name": "user_rating", "value": True}
        await here.rate(rating, headers={"Idempotency-Key": "k1"})
        too_long = await here.rate(rating, headers={"Idempotency-Key": "k" * 256})
        assert too_long.json()["error"]["param"] == "Idempotency-Key"
        clock.now += 26 * 3_600_000
        await here.rate(rating, headers={"Idempotency-Key": "k2"})
        kept = await here.gateway.writer.write(
            lambda conn: conn.exec_driver_sql("select key from idempotency").scalars().all()
        )
        assert kept == ["k2"]


@pytest.mark.parametrize("stream", [True])
async def test_a_reply_may_be_rated_while_it_streams(tmp_path: Path, stream: bool) -> None:
    from serving.engines.stub.script import Reply

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
