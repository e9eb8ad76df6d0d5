"""Feedback tokens: good for one metric of one target until they expire, for writing only, and not to be forged."""

from pathlib import Path
from typing import Any

import httpx

from feedback.schemas import FEEDBACK, Feedback
from serving.auth import load_keys
from serving.feedback.tokens import Ticket, mint
from tests.serving.harness import KEYS, Clock, World, bearer, scripted, until, world


async def ask(here: World, body: dict[str, Any], key: str = "app") -> httpx.Response:
    return await here.http.post("/v1/feedback/tokens", json=body, headers=bearer(key))


async def send(here: World, token: str, body: Any) -> httpx.Response:
    """As a browser does: no key anywhere."""
    return await here.http.post("/v1/feedback", params={"token": token}, json=body)


async def test_a_token_rates_its_target_by_either_way_and_shows_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi", user="anna")
        made = await ask(here, {"response_id": reply["id"], "name": "user_rating", "source": {"id": "anna"}})
        assert made.status_code == 201
        token = made.json()["token"]
        assert made.json()["url"] == f"{here.url}/v1/feedback?token={token}"
        for secret in ("anna", "app", "secret"):
            assert secret not in token
        first = await here.http.post(made.json()["url"], content=b'{"value": true}')
        assert (first.status_code, first.json()["change"]) == (202, "new")
        assert set(first.json()) == {"id", "object", "status", "revision", "name", "change"}
        again = await here.http.post(
            "/v1/feedback", json={"value": False}, headers={"Authorization": f"Bearer {token}"}
        )
        assert (again.json()["change"], again.json()["id"]) == ("changed", first.json()["id"])
        await until(lambda: len(here.records(FEEDBACK)) >= 2)
        sent = [Feedback.from_bytes(record.value) for record in here.records(FEEDBACK)]
        (interaction,) = await here.interactions(1)
        assert [(each.response_id, each.score, each.rater) for each in sent] == [
            (reply["id"], 1.0, interaction.user),
            (reply["id"], 0.0, interaction.user),
        ]


async def test_a_token_is_for_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply, other = await here.answer("Hi"), await here.answer("Ho")
        token = (await ask(here, {"response_id": reply["id"], "name": "user_rating"})).json()["token"]
        good = {
            "response_id": reply["id"],
            "episode_id": reply["episode_id"],
            "key": "user_rating",
            "value": 1,
        }
        cases = [
            ({**good, "response_id": other["id"]}, 403, "response_id"),
            ({"value": True, "episode_id": other["episode_id"]}, 403, "episode_id"),
            ({"value": True, "name": "comment"}, 403, "name"),
            ({"value": True, "id": "fb_1"}, 403, "id"),
            ({"chosen": reply["id"], "rejected": other["id"]}, 403, "chosen"),
            ({"value": "up"}, 422, "value"),
            ({"feedback": [{"value": True}]}, 422, "feedback"),
        ]
        for body, status, param in cases:
            response = await send(here, token, body)
            assert (response.status_code, response.json()["error"]["param"]) == (status, param), body
        assert (await send(here, token, good)).status_code == 202
        url = f"/v1/feedback/{(await send(here, token, {'value': True})).json()['id']}"
        headers = {"Authorization": f"Bearer {token}"}
        for method in ("GET", "PATCH", "DELETE"):
            assert (await here.http.request(method, url, json={}, headers=headers)).status_code == 401
        listed = await here.http.get(
            "/v1/feedback", params={"episode_id": reply["episode_id"], "token": token}
        )
        assert listed.status_code == 401


async def test_only_a_feedback_key_gets_a_token_for_what_is_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi")
        target = {"response_id": reply["id"], "name": "user_rating"}
        cases = [
            (target, "other", 404, "response_id"),
            ({**target, "response_id": "nonsense"}, "app", 422, "response_id"),
            ({"response_id": reply["id"]}, "app", 422, "name"),
            ({**target, "name": "charm"}, "app", 400, "name"),
            ({**target, "name": "comparison"}, "app", 422, "name"),
            ({**target, "expires_in": 0}, "app", 422, "expires_in"),
            ({**target, "expires_in": 86_401}, "app", 422, "expires_in"),
            ({"name": "user_rating"}, "app", 422, "response_id"),
        ]
        for body, key, status, param in cases:
            response = await ask(here, body, key)
            assert (response.status_code, response.json()["error"]["param"]) == (status, param), body
        assert (await here.http.post("/v1/feedback/tokens", json=target)).status_code == 401


async def test_a_token_of_an_episode_and_of_a_tool_call(tmp_path: Path) -> None:
    script = scripted({"Fly": ["<tool_call>flights(Lima)</tool_call>", "Done."]})
    async with world(tmp_path, script=script) as here:
        reply = await here.answer("Fly", episode_id="mine")
        await here.interactions(1)
        call = reply["agent"]["tools"][0]["id"]
        whole = await ask(here, {"target": {"episode_id": "mine"}, "name": "user_rating"})
        step = await ask(
            here, {"target": {"response_id": reply["id"], "tool_call_id": call}, "name": "user_rating"}
        )
        for made in (whole, step):
            assert (await send(here, made.json()["token"], {"value": True})).status_code == 202
        await until(lambda: len(here.records(FEEDBACK)) >= 2)
        sent = [Feedback.from_bytes(record.value) for record in here.records(FEEDBACK)]
        assert [(each.response_id, each.tool_call_id) for each in sent] == [(None, None), (reply["id"], call)]


async def test_expired_and_forged_tokens_get_in_nowhere(tmp_path: Path) -> None:
    clock = Clock()
    async with world(tmp_path, clock=clock) as here:
        reply = await here.answer("Hi")
        body = {"response_id": reply["id"], "name": "user_rating", "expires_in": 60}
        token = (await ask(here, body)).json()["token"]
        ring = load_keys(tmp_path, KEYS)
        app, other = ring.find("Bearer secret-app"), ring.find("Bearer secret-other")
        assert app is not None and other is not None
        ticket = Ticket(reply["episode_id"], reply["id"], None, "user_rating", None, clock.now + 60_000)
        stolen = mint(other, ticket)
        signed = stolen.partition(".")[2]
        forged = [
            "",
            "x",
            "fbt_",
            "fbt_.",
            "fbt_x.y",
            token[:-1],
            token[:-2] + "AA",
            token.upper(),
            token + "x" * 3000,
            f"fbt_{app.id}.{signed}",
        ]
        for attempt in forged:
            response = await send(here, attempt, {"value": True})
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_token"), attempt
        assert (await send(here, stolen, {"value": True})).status_code == 404  # its own key, a foreign target
        clock.now += 59_999
        assert (await send(here, token, {"value": True})).status_code == 202
        clock.now += 1
        late = await send(here, token, {"value": True})
        assert (late.status_code, late.json()["error"]["code"]) == (401, "token_expired")
