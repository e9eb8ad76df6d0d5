"""`/v1/responses`: OpenAI's Responses API over the same agent loop as chat; nothing of its own is decided here."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from serving.answering import Answering
from serving.bodies import read_json, validate
from serving.delivery import Delivery
from serving.episode_rows import is_withdrawn
from serving.errors import ApiError, json_response
from serving.gateway import Gateway
from serving.opening import Opened, Wanted
from serving.responses.body import ResponsesRequest, as_chat, own_messages
from serving.responses.shapes import Keep, ResponseShapes, answer_message
from serving.responses.stored import Conversation, Stored, keep, remove
from serving.routes.access import caller, require
from serving.routes.chat import check_room
from serving.storing import durable


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/responses")
    schema = {
        "requestBody": {"content": {"application/json": {"schema": ResponsesRequest.model_json_schema()}}}
    }

    @routes.post("", response_model=None, openapi_extra=schema)
    async def create(request: Request) -> Response:
        """Answer; `previous_response_id` goes on from a stored response."""
        key = require(request, gateway.keys, "chat")
        body = validate(ResponsesRequest, read_json(await request.body()))
        check_room(gateway, answers=1)
        before = await _before(gateway, key.owner, body.previous_response_id)
        own = own_messages(body)
        chat = as_chat(body, before.messages if before else (), own)
        wanted = Wanted(
            "resp_", after=body.previous_response_id, inside=before.episode_id if before else None
        )
        opened = await gateway.opener.open(caller(request, key, chat), chat, wanted=wanted)
        shapes = ResponseShapes(
            opened,
            body,
            agent=gateway.agent_file.agent,
            clock=gateway.clock,
            keep=_keeper(gateway, key.owner, opened, body=body, own=own),
        )
        answers = [Answering(gateway, opened)]
        return Delivery(answers, shapes, stream=bool(body.stream), keep_alive_s=gateway.keep_alive_s)

    @routes.get("/{response_id}", response_model=None)
    async def retrieve(request: Request, response_id: str) -> Response:
        """A stored response."""
        key = require(request, gateway.keys, "chat")
        found = await gateway.responses.find(key.owner, response_id)
        if found is None:
            raise _unknown(404, "response_id")
        return json_response(found)

    @routes.delete("/{response_id}", response_model=None)
    async def delete(request: Request, response_id: str) -> Response:
        """Nothing can go on from it any more; its episode stays."""
        key = require(request, gateway.keys, "chat")
        if not await durable(gateway, lambda conn: remove(conn, key.owner, response_id)):
            raise _unknown(404, "response_id")
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return routes


async def _before(gateway: Gateway, owner: str, response_id: str | None) -> Conversation | None:
    if response_id is None:
        return None
    found = await gateway.responses.conversation(owner, response_id)
    if found is None:
        raise _unknown(400, "previous_response_id")
    return found


def _keeper(
    gateway: Gateway, owner: str, opened: Opened, *, body: ResponsesRequest, own: list[dict[str, Any]]
) -> Keep:
    """Stores the response where the client wants it; durable when it returns. Raises ApiError."""

    async def store(value: dict[str, Any]) -> None:
        if body.store is False:
            return
        stored = Stored(
            response_id=opened.opening.response_id,
            key_owner=owner,
            episode_id=opened.opening.episode.episode_id,
            previous=body.previous_response_id,
            messages=[*own, answer_message(value)],
            value=value,
            created_at=opened.opening.started_at,
        )

        def job(conn: Connection) -> None:
            if not is_withdrawn(conn, stored.episode_id):
                keep(conn, stored)

        await durable(gateway, job)

    return store


def _unknown(status: int, where: str) -> ApiError:
    code = "previous_response_not_found" if status == 400 else "response_not_found"
    return ApiError(status, "no such response is stored", code=code, param=where)
