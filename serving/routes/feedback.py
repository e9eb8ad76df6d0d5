"""`/v1/feedback`: 202 only once what was said is durable; a batch is stored whole or not at all."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from serving import idempotency
from serving.auth import Key
from serving.errors import ApiError, field_error, json_response
from serving.feedback.bodies import Given, read_feedback, read_patch
from serving.feedback.ratings import Stored
from serving.feedback.shown import shown_to_browser
from serving.feedback.targets import find_episode
from serving.feedback.tokens import redeem
from serving.gateway import Gateway
from serving.routes.access import require, token_of
from serving.storing import count, durable, store_one


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/feedback")
    ratings = gateway.ratings
    schema = {"requestBody": {"content": {"application/json": {"schema": Given.model_json_schema()}}}}

    @routes.post("", status_code=202, response_model=None, openapi_extra=schema)
    async def submit(request: Request) -> Response:
        """Store one piece of feedback, or `{"feedback": […]}` of up to 100; a browser's token allows one."""
        if (token := token_of(request)) is not None:
            return await _by_token(gateway, token, request)
        key = require(request, gateway.keys, "feedback")
        once = idempotency.read_key(request.headers.get("idempotency-key"))
        raw = await request.body()
        bodies, batch = read_feedback(raw)

        def job(conn: Connection) -> tuple[bytes, list[Stored], bool]:
            return _store(conn, gateway, key, bodies, batch=batch, once=once, raw=raw)

        reply, stored, replayed = await durable(gateway, job)
        for each in stored:
            count(gateway, each)
        headers = {"Idempotent-Replayed": "true"} if replayed else {}
        return Response(reply, 202, headers, media_type="application/json")

    @routes.get("", response_model=None)
    async def of_episode(request: Request, episode_id: str) -> Response:
        """All feedback on an episode."""
        key = require(request, gateway.keys, "feedback")

        def job(conn: Connection) -> list[dict[str, Any]]:
            found = find_episode(conn, key.owner, episode_id)
            if found is None:
                raise ApiError(404, "no such episode", code="target_not_found", param="episode_id")
            return ratings.of_episode(conn, key, found)

        return json_response({"object": "list", "data": await durable(gateway, job)})

    @routes.get("/{feedback_id}", response_model=None)
    async def one(request: Request, feedback_id: str) -> Response:
        """One piece of feedback."""
        key = require(request, gateway.keys, "feedback")
        return json_response(await durable(gateway, lambda conn: ratings.get(conn, key, feedback_id)))

    @routes.patch("/{feedback_id}", status_code=202, response_model=None)
    async def change(request: Request, feedback_id: str) -> Response:
        """Change value, comment, correction or metadata."""
        key = require(request, gateway.keys, "feedback")
        patch = read_patch(await request.body())
        stored = await durable(gateway, lambda conn: ratings.patch(conn, key, feedback_id, patch))
        return json_response(stored.reply, status=202)

    @routes.delete("/{feedback_id}", response_model=None)
    async def withdraw(request: Request, feedback_id: str) -> Response:
        """Take it back."""
        key = require(request, gateway.keys, "feedback")
        return json_response(await durable(gateway, lambda conn: ratings.delete(conn, key, feedback_id)))

    return routes


async def _by_token(gateway: Gateway, token: str, request: Request) -> Response:
    """A browser's one rating: the token says of what, of whom and under which name."""
    key, ticket = redeem(gateway.keys, token, now=gateway.clock())
    bodies, batch = read_feedback(await request.body())
    if batch:
        raise field_error("feedback", "a token allows one")
    (body,) = bodies
    stored = await store_one(gateway, key, ticket.bound(body))
    return json_response(shown_to_browser(stored.reply), status=202)


def _store(
    conn: Connection,
    gateway: Gateway,
    key: Key,
    bodies: list[Given],
    *,
    batch: bool,
    once: str | None,
    raw: bytes,
) -> tuple[bytes, list[Stored], bool]:
    """(reply, what was stored, whether it is a replay by Idempotency-Key)."""
    if once is not None and (known := idempotency.replay(conn, key.owner, once, raw)) is not None:
        return known, [], True
    stored = [
        gateway.ratings.submit(conn, key, body, where=f"feedback[{index}]" if batch else "")
        for index, body in enumerate(bodies)
    ]
    replies = [each.reply for each in stored]
    reply = orjson.dumps({"object": "list", "data": replies} if batch else replies[0])
    if once is not None:
        idempotency.remember(conn, key.owner, once, raw, reply=reply, at=gateway.clock())
    return reply, stored, False
