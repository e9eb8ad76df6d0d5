"""The routes that only show: versions, events, the whole status, and the numbers and health that machines ask for."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from deploy.api.desk import Desk
from deploy.canary import history, ledger
from deploy.canary.metrics import CONTENT_TYPE, exposition
from deploy.canary.status import version_body
from serving.errors import json_response


def record_routes(desk: Desk) -> APIRouter:
    """`/v1/versions`, `/v1/events`, `/v1/status` for an admin key; `/metrics` and `/healthz` for anybody."""
    router = APIRouter()
    Actor = Annotated[str, Depends(desk.admin)]

    @router.get("/v1/versions")
    def versions(actor: Actor) -> Response:
        with desk.reader.connect() as conn:
            data = [version_body(conn, row) for row in ledger.list_versions(conn)]
        return json_response({"object": "list", "data": data})

    @router.get("/v1/events")
    def events(
        actor: Actor,
        canary_id: str | None = None,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        with desk.reader.connect() as conn:
            data = history.list_events(conn, canary_id=canary_id, after=after, limit=limit)
        return json_response({"object": "list", "data": data})

    @router.get("/v1/status")
    def status(actor: Actor) -> Response:
        return json_response(desk.status())

    @router.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(desk.status), media_type=CONTENT_TYPE)

    @router.get("/healthz")
    def health() -> Response:
        alive = desk.is_alive()
        return json_response(
            {"status": "ok" if alive else "controller stopped"}, status=200 if alive else 503
        )

    return router
