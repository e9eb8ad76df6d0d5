"""`/v1/episodes/{id}`: what was recorded and what became of it; the end; the withdrawal."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection, select, update

from feedback.schemas import INTERACTIONS as TOPIC
from feedback.schemas import EpisodeEnd, Withdrawal
from serving.auth import Key
from serving.errors import ApiError, json_response
from serving.feedback.targets import find_episode
from serving.gateway import Gateway
from serving.responses.stored import remove_episode
from serving.routes.access import require
from serving.storing import durable
from serving.tables import EPISODES, INTERACTIONS


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/episodes")

    @routes.get("/{episode_id}", response_model=None)
    async def show(request: Request, episode_id: str) -> Response:
        """Its interactions, ratings, and what updates credited."""
        key = require(request, gateway.keys, "chat")
        return json_response(await durable(gateway, lambda conn: _shown(conn, gateway, key, episode_id)))

    @routes.post("/{episode_id}/end", response_model=None)
    async def end(request: Request, episode_id: str) -> Response:
        """Close it now; saying it twice changes nothing."""
        key = require(request, gateway.keys, "chat")
        found, ended_at = await durable(gateway, lambda conn: _end(conn, gateway, key, episode_id))
        episode = await gateway.episodes.by_id(key.owner, found)
        if episode is not None:
            episode.ended_at = ended_at
        return json_response({"id": found, "object": "episode", "status": "ended", "ended_at": ended_at})

    @routes.delete("/{episode_id}", response_model=None)
    async def withdraw(request: Request, episode_id: str) -> Response:
        """Take it back: its content is removed here and tombstoned everywhere."""
        key = require(request, gateway.keys, "chat")
        found = await durable(gateway, lambda conn: _withdraw(conn, gateway, key, episode_id))
        await gateway.episodes.forget(key.owner, found)
        return json_response({"id": found, "object": "episode.deleted", "deleted": True})

    return routes


def _own(conn: Connection, key: Key, named: str) -> Any:
    found = find_episode(conn, key.owner, named)
    if found is None:
        raise ApiError(404, "no such episode", code="episode_not_found", param="episode_id")
    row = conn.execute(select(EPISODES).where(EPISODES.c.episode_id == found)).one()
    if row.withdrawn_at is not None:
        raise ApiError(410, "the episode was withdrawn", code="withdrawn", param="episode_id")
    return row


def _shown(conn: Connection, gateway: Gateway, key: Key, named: str) -> dict[str, Any]:
    row = _own(conn, key, named)
    query = select(INTERACTIONS).where(INTERACTIONS.c.episode_id == row.episode_id)
    interactions = conn.execute(query.order_by(INTERACTIONS.c.index)).all()
    return {
        "id": row.episode_id,
        "object": "episode",
        "arm": row.arm,
        "adapter_version": row.version,
        "propensity": row.propensity,
        "generation": row.generation,
        "canary_id": row.canary_id,
        "flags": row.flags.split(),
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "interactions": [
            {
                "response_id": each.response_id,
                "index": each.index,
                "parent_response_id": each.parent,
                "adapter_version": each.version,
                "status": each.status,
                "flags": each.flags.split(),
                "user": each.user_text,
                "assistant": each.delivered,
                "started_at": each.started_at,
                "ended_at": each.ended_at,
            }
            for each in interactions
        ],
        "feedback": gateway.ratings.of_episode(conn, key, row.episode_id),
        "credits": gateway.news.of_episode(conn, row.episode_id),
    }


def _end(conn: Connection, gateway: Gateway, key: Key, named: str) -> tuple[str, int]:
    row = _own(conn, key, named)
    if row.ended_at is not None:
        return row.episode_id, row.ended_at
    now = gateway.clock()
    conn.execute(update(EPISODES).where(EPISODES.c.episode_id == row.episode_id).values(ended_at=now))
    message = EpisodeEnd(agent=gateway.agent_file.agent, episode_id=row.episode_id, ended_at=now)
    gateway.outbox.put(conn, TOPIC, row.episode_id, message.to_bytes(), now)
    return row.episode_id, now


def _withdraw(conn: Connection, gateway: Gateway, key: Key, named: str) -> str:
    row = _own(conn, key, named)
    now = gateway.clock()
    values = {"withdrawn_at": now, "ended_at": now}
    conn.execute(update(EPISODES).where(EPISODES.c.episode_id == row.episode_id).values(**values))
    blank = {"user_text": "", "delivered": None, "ids": None, "thread": None}
    conn.execute(update(INTERACTIONS).where(INTERACTIONS.c.episode_id == row.episode_id).values(**blank))
    gateway.ratings.forget_episode(conn, row.episode_id)
    remove_episode(conn, row.episode_id)
    message = Withdrawal(agent=gateway.agent_file.agent, episode_id=row.episode_id, withdrawn_at=now)
    gateway.outbox.put(conn, TOPIC, row.episode_id, message.to_bytes(), now)
    return str(row.episode_id)
