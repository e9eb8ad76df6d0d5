"""`POST /v1/chat/completions`: reads the request, opens its answers, and hands both to the delivery."""

from fastapi import APIRouter, Request, Response

from serving.answering import Answering
from serving.bodies import ChatRequest, read_json, validate
from serving.delivery import Delivery
from serving.errors import ApiError
from serving.gateway import Gateway
from serving.reply import ChatShapes
from serving.routes.access import caller, require


def router(gateway: Gateway) -> APIRouter:
    """The route."""
    routes = APIRouter()
    schema = {"requestBody": {"content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}}

    @routes.post("/v1/chat/completions", response_model=None, openapi_extra=schema)
    async def chat(request: Request) -> Response:
        """Answer a conversation; server-side tools run inside."""
        key = require(request, gateway.keys, "chat")
        body = validate(ChatRequest, read_json(await request.body()))
        check_room(gateway, answers=body.n or 1)
        first = await gateway.opener.open(caller(request, key, body), body)
        opened = [first, *(gateway.opener.sibling(first, index) for index in range(1, body.n or 1))]
        shapes = ChatShapes(
            opened,
            agent=gateway.agent_file.agent,
            created=gateway.clock() // 1000,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
        )
        answers = [Answering(gateway, each) for each in opened]
        return Delivery(answers, shapes, stream=bool(body.stream), keep_alive_s=gateway.keep_alive_s)

    return routes


def check_room(gateway: Gateway, *, answers: int) -> None:
    """Raises 429 where so many more answers would be too many at once."""
    if gateway.adapters.in_flight() + answers > gateway.max_in_flight:
        raise ApiError(429, "too many requests run now", code="overloaded", retry_after_s=1)
