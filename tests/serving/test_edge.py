"""What the edge refuses before anything is read: too much, too fast, too many at once; and what no log may hold."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from feedback.schemas import FEEDBACK
from serving.engines.stub.script import Reply
from tests.serving.harness import bearer, scripted, until, world


def limited(response: httpx.Response, code: str) -> bool:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req_")
    waits = int(response.headers["retry-after"])
    return (response.status_code, error["type"], error["code"]) == (
        429,
        "rate_limit_exceeded",
        code,
    ) and waits >= 1


async def test_a_key_that_asks_too_fast_waits_and_others_do_not(tmp_path: Path) -> None:
    async with world(tmp_path, settings={"key_rate": 0.01, "key_burst": 3}) as here:
        for _ in range(3):
            assert (await here.http.get("/v1/models", headers=bearer())).status_code == 200
        refused = await here.http.get("/v1/models", headers=bearer())
        assert limited(refused, "rate_limit_exceeded")
        assert 95 <= int(refused.headers["retry-after"]) <= 100
        assert (await here.chat("Hi")).status_code == 429
        assert (await here.http.get("/v1/models", headers=bearer("other"))).status_code == 200
        assert (await here.http.get("/healthz")).status_code == 200
        assert (
            'ratchet_refused_total{reason="rate_limit_exceeded"} 2.0'
            in (await here.http.get("/metrics")).text
        )


async def test_a_key_has_so_many_seats_and_gets_them_back(tmp_path: Path) -> None:
    slow = scripted({"Slow": Reply("one two three four", each_s=0.1)})
    async with world(tmp_path, script=slow, settings={"key_in_flight": 2}) as here:
        running = [asyncio.create_task(here.chat("Slow", stream=True)) for _ in range(2)]
        found: list[httpx.Response] = []
        while not found or found[-1].status_code == 200:
            assert not all(task.done() for task in running)
            found.append(await here.http.get("/v1/models", headers=bearer()))
        assert limited(found[-1], "too_many_in_flight")
        assert (await here.http.get("/v1/models", headers=bearer("other"))).status_code == 200
        assert [response.status_code for response in await asyncio.gather(*running)] == [200, 200]
        assert (await here.http.get("/v1/models", headers=bearer())).status_code == 200


async def test_a_rater_who_floods_is_slowed_down_and_nothing_of_a_batch_is_stored(tmp_path: Path) -> None:
    async with world(tmp_path, settings={"rater_rate": 0.01, "rater_burst": 3}) as here:
        reply = await here.answer("Hi")
        rating: dict[str, Any] = {"response_id": reply["id"], "name": "user_rating"}
        one = {**rating, "source": {"id": "one"}}
        for number in range(3):
            assert (await here.rate({**one, "value": number % 2 == 0})).status_code == 202
        assert limited(await here.rate({**one, "value": True}), "rate_limit_exceeded")
        two = {**rating, "source": {"id": "two"}, "value": True}
        assert limited(await here.rate({"feedback": [two, {**one, "value": True}]}), "rate_limit_exceeded")
        assert (await here.rate(two)).json()["change"] == "new"
        await until(lambda: len(here.records(FEEDBACK)) >= 4)


async def test_headers_and_bodies_have_bounds(tmp_path: Path) -> None:
    settings = {"max_headers": 2048, "max_body": 4096}
    async with world(tmp_path, settings=settings) as here:
        big = {**bearer(), "x-much": "x" * 3000}
        refused = await here.http.get("/v1/models", headers=big)
        assert (refused.status_code, refused.json()["error"]["code"]) == (431, "headers_too_large")
        long_url = await here.http.get("/v1/models", params={"q": "x" * 3000}, headers=bearer())
        assert long_url.status_code == 431
        body = b'{"comment": "' + b"x" * 5000 + b'"}'

        async def pieces() -> Any:
            for start in range(0, len(body), 1000):
                yield body[start : start + 1000]

        for content in (body, pieces()):
            refused = await here.http.post("/v1/feedback", content=content, headers=bearer())
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/chat/completions"])
async def test_pages_of_other_origins_get_nothing_unless_they_are_named(tmp_path: Path, path: str) -> None:
    wish = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    (tmp_path / "off").mkdir()
    async with world(tmp_path / "off") as here:
        for method, headers in (("OPTIONS", wish), ("POST", {"Origin": wish["Origin"]})):
            response = await here.http.request(method, path, headers=headers)
            assert response.status_code in (401, 405)
            assert not [name for name in response.headers if name.startswith("access-control-")]
    (tmp_path / "on").mkdir()
    async with world(tmp_path / "on", settings={"cors_origins": "https://app.example"}) as here:
        allowed = await here.http.options(path, headers=wish)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, wish["Origin"])
        assert "access-control-allow-credentials" not in allowed.headers
        other = await here.http.options(path, headers={**wish, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_no_content_and_no_key_in_any_log_or_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with world(tmp_path, script=scripted({}, "PRIVATE answer")) as here:
        reply = await here.answer("PRIVATE question", user="PRIVATE-user")
        target = {"response_id": reply["id"]}
        bodies = [
            {**target, "name": "user_rating", "value": True, "comment": "PRIVATE comment"},
            {**target, "correction": "PRIVATE correction", "metadata": {"k": "PRIVATE meta"}},
            {**target, "name": "user_rating", "value": "PRIVATE value"},
            {**target, "name": "PRIVATE name", "value": 1},
        ]
        for body in bodies:
            await here.rate(body)
        await here.http.get("/v1/models", headers={"Authorization": "Bearer PRIVATE-key"})

        def fails(conn: Any) -> None:
            conn.exec_driver_sql("insert into ratings (id) values (?)", ("PRIVATE row",))

        with pytest.raises(Exception, match="NOT NULL") as caught:
            await here.gateway.writer.write(fails)
        assert "PRIVATE" not in str(caught.value)
        metrics = (await here.http.get("/metrics")).text
    logged = "\n".join(
        caplog.handler.format(record) for record in caplog.records if not record.name.startswith("http")
    )
    for secret in ("PRIVATE", "secret-app"):
        assert secret not in logged and secret not in metrics
