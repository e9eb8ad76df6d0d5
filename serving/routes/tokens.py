"""`POST /v1/feedback/tokens`: a token that a browser may send one kind of feedback on one target with."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from serving.auth import Key
from serving.errors import field_error, json_response
from serving.feedback.bodies import TokenRequest, read_token_request
from serving.feedback.tokens import Ticket, mint
from serving.gateway import Gateway
from serving.routes.access import require
from serving.storing import durable


def router(gateway: Gateway) -> APIRouter:
    """The route."""
    routes = APIRouter()
    schema = {"requestBody": {"content": {"application/json": {"schema": TokenRequest.model_json_schema()}}}}

    @routes.post("/v1/feedback/tokens", status_code=201, response_model=None, openapi_extra=schema)
    async def make(request: Request) -> Response:
        """Sign a token; nothing is stored."""
        key = require(request, gateway.keys, "feedback")
        body = read_token_request(await request.body())
        ticket = await durable(gateway, lambda conn: _ticket(conn, gateway, key, body))
        token = mint(key, ticket)
        return json_response(
            {
                "object": "feedback.token",
                "token": token,
                "url": f"{request.base_url}v1/feedback?token={token}",
                "expires_at": datetime.fromtimestamp(ticket.expires_at / 1000, UTC).isoformat(),
                "episode_id": ticket.episode_id,
                "response_id": ticket.response_id,
                "tool_call_id": ticket.tool_call_id,
                "name": ticket.name,
            },
            status=201,
        )

    return routes


def _ticket(conn: Connection, gateway: Gateway, key: Key, body: TokenRequest) -> Ticket:
    """What the token will allow. Raises as feedback itself would."""
    name = body.metric()
    if name is None:
        raise field_error("name", "the metric's name is missing", code="missing")
    target = gateway.ratings.target_of(conn, key, name, body)
    expires_at = gateway.clock() + body.expires_in * 1000
    source = body.source.id if body.source else None
    return Ticket(target.episode_id, target.response_id, target.tool_call_id, name, source, expires_at)
