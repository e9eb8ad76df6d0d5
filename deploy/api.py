"""Deploy's own HTTP API: the verbs on canaries, what is live and why, numbers. Every route but health needs an admin key.

Handlers are plain functions run in threads: each is one transaction of `Steering`, whose order with the controller's
turns does not matter.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from deploy.canary import history, ledger
from deploy.canary.metrics import CONTENT_TYPE, exposition
from deploy.canary.offers import BadAdapter, Offers
from deploy.canary.status import canary_body, status_body, version_body
from deploy.canary.steering import Refused, Steering, Unknown
from deploy.canary.trial import Illegal
from feedback.bus import Partition
from feedback.outbox import Outbox
from feedback.store import reading
from serving.auth import KeyRing
from serving.errors import ApiError, install, json_response

Verb = Literal["promote", "pause", "resume", "abort", "retry", "undo"]
ACTIVE, LATEST = "active", "latest"
_RETRY_S = 15.0


class OfferBody(BaseModel):
    """Exactly one of an adapter folder on this host and a registered version."""

    model_config = ConfigDict(extra="forbid")

    path: Path | None = Field(default=None, description="adapter folder with its manifest")
    version: str | None = Field(default=None, description="a registered version, such as travel-desk-000042")

    @model_validator(mode="after")
    def _one(self) -> "OfferBody":
        if (self.path is None) == (self.version is None):
            raise ValueError("give exactly one of path and version")
        return self


class VerbBody(BaseModel):
    """Options of a verb."""

    model_config = ConfigDict(extra="forbid")

    full: bool = Field(
        default=False, description="promote only: make the candidate champion now, not one step on"
    )


def create_app(
    steering: Steering,
    offers: Offers,
    keys: KeyRing,
    *,
    outbox: Outbox,
    registry_down: type[Exception],
    lag: Callable[[], Mapping[Partition, int]],
    is_alive: Callable[[], bool],
) -> FastAPI:
    """The application over collaborators that are built elsewhere."""
    app = FastAPI(title="Ratchet deploy", version="1")
    install(app)
    reader = reading(steering.engine)

    def admin(authorization: Annotated[str | None, Header()] = None) -> str:
        key = keys.find(authorization)
        if key is None:
            raise ApiError(401, "no valid API key: send Authorization: Bearer …", code="invalid_api_key")
        if not key.may("admin"):
            raise ApiError(403, f"key {key.owner} lacks the scope admin", code="insufficient_scope")
        return key.owner

    Actor = Annotated[str, Depends(admin)]

    def status() -> dict[str, Any]:
        with reader.connect() as conn:
            return status_body(conn, steering, lag=lag(), spooled=outbox.depth())

    def one(canary_id: str) -> Response:
        with reader.connect() as conn:
            return json_response(canary_body(steering.find(conn, canary_id)))

    def named(canary_id: str, verb: Verb | None = None) -> str:
        if canary_id not in (ACTIVE, LATEST):
            return canary_id
        with reader.connect() as conn:
            champion = history.champions(conn)[-1].version
            if verb == "undo" and (crowning := ledger.newest_promotion(conn, champion)) is not None:
                return crowning.canary_id
            rows = ledger.list_canaries(conn)
            row = ledger.active_canary(conn) if canary_id == ACTIVE else rows[-1] if rows else None
        if row is None:
            raise Unknown(canary_id)
        return row.canary_id

    @app.post("/v1/canaries", status_code=201)
    def offer(body: OfferBody, actor: Actor) -> Response:
        try:
            if body.path is not None:
                offered = offers.offer_folder(body.path, actor=actor)
            else:
                offered = offers.offer_version(body.version or "", actor=actor)
        except BadAdapter as error:
            raise ApiError(422, str(error), code="bad_adapter", param="path") from error
        except Refused as error:
            raise ApiError(409, str(error), code="refused") from error
        except registry_down as error:
            raise ApiError(503, f"MLflow is away: {error}", code="mlflow", retry_after_s=_RETRY_S) from error
        response = one(offered.canary_id)
        response.status_code = 201 if offered.new else 200
        return response

    @app.get("/v1/canaries")
    def canaries(actor: Actor) -> Response:
        with reader.connect() as conn:
            rows = ledger.list_canaries(conn)
        return json_response({"object": "list", "data": [canary_body(row, full=False) for row in rows]})

    @app.get("/v1/canaries/{canary_id}")
    def canary(canary_id: str, actor: Actor) -> Response:
        return one(named(canary_id))

    @app.post("/v1/canaries/{canary_id}/{verb}")
    def act(canary_id: str, verb: Verb, actor: Actor, body: VerbBody | None = None) -> Response:
        target = named(canary_id, verb)
        if verb == "promote":
            steering.promote(target, actor=actor, full=body is not None and body.full)
        elif verb == "retry":
            target = steering.retry(target, actor=actor)
        else:
            {
                "pause": steering.pause,
                "resume": steering.resume,
                "abort": steering.abort,
                "undo": steering.undo,
            }[verb](target, actor=actor)
        return one(target)

    @app.get("/v1/versions")
    def versions(actor: Actor) -> Response:
        with reader.connect() as conn:
            data = [version_body(conn, row) for row in ledger.list_versions(conn)]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/events")
    def events(
        actor: Actor,
        canary_id: str | None = None,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        with reader.connect() as conn:
            data = history.list_events(conn, canary_id=canary_id, after=after, limit=limit)
        return json_response({"object": "list", "data": data})

    @app.get("/v1/status")
    def whole_status(actor: Actor) -> Response:
        return json_response(status())

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(status), media_type=CONTENT_TYPE)

    @app.get("/healthz")
    def health() -> Response:
        alive = is_alive()
        return json_response(
            {"status": "ok" if alive else "controller stopped"}, status=200 if alive else 503
        )

    @app.exception_handler(Unknown)
    def unknown(request: object, error: Exception) -> Response:
        return ApiError(404, f"there is no {error}", code="not_found").response()

    @app.exception_handler(Illegal)
    def illegal(request: object, error: Exception) -> Response:
        return ApiError(409, str(error), code="illegal_transition").response()

    return app
