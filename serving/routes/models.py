"""`/v1/models`: the stable name of the agent, with what is live behind it."""

from typing import Any

from fastapi import APIRouter, Request, Response

from serving.errors import ApiError, json_response
from serving.gateway import Gateway
from serving.routes.access import require


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models")

    @routes.get("", response_model=None)
    async def models(request: Request) -> Response:
        """The agents served here."""
        require(request, gateway.keys, "chat")
        return json_response({"object": "list", "data": [_card(gateway)]})

    @routes.get("/{model_id:path}", response_model=None)
    async def model(request: Request, model_id: str) -> Response:
        """One agent."""
        require(request, gateway.keys, "chat")
        if model_id != gateway.agent_file.agent:
            message = f"no model {model_id[:80]!r} is served here"
            raise ApiError(404, message, code="model_not_found", param="model")
        return json_response(_card(gateway))

    return routes


def _card(gateway: Gateway) -> dict[str, Any]:
    split = gateway.adapters.split
    lineage = None
    if split is not None:
        lineage = {
            "generation": split.generation,
            "champion": split.champion.version,
            "candidate": split.candidate.version if split.candidate else None,
            "share": split.share,
            "canary_id": split.canary_id,
            "holdout": split.holdout.ref.version if split.holdout else None,
        }
    created = gateway.adapters.wanted.at // 1000
    name = gateway.agent_file.agent
    return {"id": name, "object": "model", "created": created, "owned_by": "ratchet", "ratchet": lineage}
