"""`/v1/feedback`: 202 only once what was said is durable; a batch is stored whole or not at all."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import SQLAlchemyError

from feedback.outbox import OutboxFull
from serving.auth import Key
from serving.bodies import FeedbackBody, FeedbackPatch, read_json, validate
from serving.errors import ApiError, json_response
from serving.gateway import Gateway
from serving.ratings import Stored
from serving.routes.access import require
from serving.tables import IDEMPOTENCY
from serving.targets import find_episode

_LARGEST_BATCH = 100
T = TypeVar("T")


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/feedback")
    ratings = gateway.ratings
    schema = {"requestBody": {"content": {"application/json": {"schema": FeedbackBody.model_json_schema()}}}}

    @routes.post("", status_code=202, response_model=None, openapi_extra=schema)
    async def submit(request: Request) -> Response:
        """Store one piece of feedback, or `{"feedback": […]}` of up to 100."""
        key = require(request, gateway.keys, "feedback")
        raw = await request.body()
        bodies, batch = _read(read_json(raw))
        idempotency = request.headers.get("idempotency-key")

        def job(conn: Connection) -> tuple[bytes, list[Stored], bool]:
            return _store(conn, gateway, key, bodies, batch=batch, idempotency=idempotency, raw=raw)

        reply, stored, replayed = await durable(gateway, job)
        for each in stored:
            _count(gateway, each)
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
        """Change value, comment or correction."""
        key = require(request, gateway.keys, "feedback")
        patch = validate(FeedbackPatch, read_json(await request.body()), status=422)
        stored = await durable(gateway, lambda conn: ratings.patch(conn, key, feedback_id, patch))
        return json_response(stored.reply, status=202)

    @routes.delete("/{feedback_id}", response_model=None)
    async def withdraw(request: Request, feedback_id: str) -> Response:
        """Take it back."""
        key = require(request, gateway.keys, "feedback")
        return json_response(await durable(gateway, lambda conn: ratings.delete(conn, key, feedback_id)))

    return routes


async def durable(gateway: Gateway, job: Callable[[Connection], T]) -> T:
    """Run a job in the writer; it is committed when this returns. 503 where nothing can be stored."""
    try:
        return await gateway.writer.write(job)
    except OutboxFull as error:
        raise ApiError(503, "the spool is full; try later", code="spool_full", retry_after_s=5) from error
    except (SQLAlchemyError, asyncio.InvalidStateError) as error:
        raise ApiError(503, "nothing can be stored now", code="storage", retry_after_s=2) from error


def _read(value: Any) -> tuple[list[FeedbackBody], bool]:
    if isinstance(value, dict) and "feedback" in value:
        items = value["feedback"]
        if not isinstance(items, list) or not 1 <= len(items) <= _LARGEST_BATCH:
            message = f"feedback: a list of 1 to {_LARGEST_BATCH} objects"
            raise ApiError(422, message, code="invalid_value", param="feedback")
        return [
            validate(FeedbackBody, item, status=422, prefix=f"feedback[{index}]")
            for index, item in enumerate(items)
        ], True
    return [validate(FeedbackBody, value, status=422)], False


def _store(
    conn: Connection,
    gateway: Gateway,
    key: Key,
    bodies: list[FeedbackBody],
    *,
    batch: bool,
    idempotency: str | None,
    raw: bytes,
) -> tuple[bytes, list[Stored], bool]:
    """(reply, what was stored, whether it is a replay by Idempotency-Key)."""
    digest = hashlib.sha256(raw).hexdigest()
    if idempotency is not None:
        where = (IDEMPOTENCY.c.key_owner == key.owner, IDEMPOTENCY.c.key == idempotency)
        known = conn.execute(select(IDEMPOTENCY).where(*where)).one_or_none()
        if known is not None and known.body_hash != digest:
            message = "this Idempotency-Key was used with another body"
            raise ApiError(422, message, code="idempotency_key_reused", param="Idempotency-Key")
        if known is not None:
            return known.reply.encode(), [], True
    stored = [
        gateway.ratings.submit(conn, key, body, where=f"feedback[{index}]" if batch else "")
        for index, body in enumerate(bodies)
    ]
    replies = [each.reply for each in stored]
    reply = orjson.dumps({"object": "list", "data": replies} if batch else replies[0])
    if idempotency is not None:
        row = {"key_owner": key.owner, "key": idempotency, "body_hash": digest, "status": 202}
        conn.execute(insert(IDEMPOTENCY).values(**row, reply=reply.decode(), at=gateway.clock()))
    return reply, stored, False


def _count(gateway: Gateway, stored: Stored) -> None:
    reply, metrics = stored.reply, gateway.metrics
    source = "human" if stored.change != "replayed" else "replay"
    metrics.feedback.labels(reply["name"], reply["arm"], reply["status"], source).inc()
    if reply["score"] is not None and stored.change != "replayed":
        metrics.feedback_score.labels(reply["name"], reply["arm"]).observe(reply["score"])
