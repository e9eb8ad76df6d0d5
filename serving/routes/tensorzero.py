"""`POST /feedback` as TensorZero has it: its body, its reply; what is stored is the same as under `/v1/feedback`."""

from fastapi import APIRouter, Request, Response

from serving.bodies import read_json, validate
from serving.errors import json_response
from serving.feedback.bodies import TensorZeroBody, read_given
from serving.gateway import Gateway
from serving.routes.access import require
from serving.storing import store_one


def router(gateway: Gateway) -> APIRouter:
    """The route."""
    routes = APIRouter()
    schema = {
        "requestBody": {"content": {"application/json": {"schema": TensorZeroBody.model_json_schema()}}}
    }

    @routes.post("/feedback", response_model=None, openapi_extra=schema)
    async def submit(request: Request) -> Response:
        """Store one piece of feedback."""
        key = require(request, gateway.keys, "feedback")
        given = validate(TensorZeroBody, read_json(await request.body()))
        stored = await store_one(gateway, key, read_given(given.given()))
        return json_response({"feedback_id": stored.reply["id"]})

    return routes
