"""The routes of canaries: offer a version, look at trials, and the verbs that steer one."""

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from deploy.api.desk import Desk
from deploy.canary import history, ledger
from deploy.canary.offers import BadAdapter
from deploy.canary.status import canary_body
from deploy.canary.steering import Offered, Refused, Unknown
from serving.errors import ApiError, json_response

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


def canary_routes(desk: Desk) -> APIRouter:
    """`/v1/canaries…`"""
    router = APIRouter(prefix="/v1/canaries")
    Actor = Annotated[str, Depends(desk.admin)]

    @router.post("", status_code=201)
    def offer(body: OfferBody, actor: Actor) -> Response:
        offered = _offer(desk, body, actor=actor)
        response = _one(desk, offered.canary_id)
        response.status_code = 201 if offered.new else 200
        return response

    @router.get("")
    def canaries(actor: Actor) -> Response:
        with desk.reader.connect() as conn:
            rows = ledger.list_canaries(conn)
        return json_response({"object": "list", "data": [canary_body(row, full=False) for row in rows]})

    @router.get("/{canary_id}")
    def canary(canary_id: str, actor: Actor) -> Response:
        return _one(desk, _named(desk, canary_id))

    @router.post("/{canary_id}/{verb}")
    def act(canary_id: str, verb: Verb, actor: Actor, body: VerbBody | None = None) -> Response:
        target = _named(desk, canary_id, verb)
        full = body is not None and body.full
        return _one(desk, _act(desk, target, verb, actor=actor, full=full))

    return router


def _offer(desk: Desk, body: OfferBody, *, actor: str) -> Offered:
    try:
        if body.path is not None:
            return desk.offers.offer_folder(body.path, actor=actor)
        return desk.offers.offer_version(body.version or "", actor=actor)
    except BadAdapter as error:
        raise ApiError(422, str(error), code="bad_adapter", param="path") from error
    except Refused as error:
        raise ApiError(409, str(error), code="refused") from error
    except desk.registry_down as error:
        raise ApiError(503, f"MLflow is away: {error}", code="mlflow", retry_after_s=_RETRY_S) from error


def _act(desk: Desk, target: str, verb: Verb, *, actor: str, full: bool) -> str:
    """The canary to look at afterwards: a retry is a new one."""
    steering = desk.steering
    match verb:
        case "promote":
            steering.promote(target, actor=actor, full=full)
        case "pause":
            steering.pause(target, actor=actor)
        case "resume":
            steering.resume(target, actor=actor)
        case "abort":
            steering.abort(target, actor=actor)
        case "undo":
            steering.undo(target, actor=actor)
        case "retry":
            return steering.retry(target, actor=actor)
    return target


def _named(desk: Desk, canary_id: str, verb: Verb | None = None) -> str:
    """Which canary `active` and `latest` mean; to undo, the latest is the one that made the champion."""
    if canary_id not in (ACTIVE, LATEST):
        return canary_id
    with desk.reader.connect() as conn:
        champion = history.champions(conn)[-1].version
        if verb == "undo" and (crowning := ledger.newest_promotion(conn, champion)) is not None:
            return crowning.canary_id
        rows = ledger.list_canaries(conn)
        row = ledger.active_canary(conn) if canary_id == ACTIVE else rows[-1] if rows else None
    if row is None:
        raise Unknown(canary_id)
    return row.canary_id


def _one(desk: Desk, canary_id: str) -> Response:
    with desk.reader.connect() as conn:
        return json_response(canary_body(desk.steering.find(conn, canary_id)))
