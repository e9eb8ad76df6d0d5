"""Responses that may be continued or read again: what each added to its conversation, by its id and key owner.

A response is durable here before its reply ends; a foreign one looks like an unknown one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
)

from feedback.store import create_tables, reading

_LONGEST = 1000  # responses in one conversation

METADATA = MetaData()
RESPONSES = Table(
    "responses",
    METADATA,
    Column("response_id", String, primary_key=True),
    Column("key_owner", String, nullable=False),
    Column("episode_id", String, nullable=False),
    Column("previous", String),
    Column("messages", LargeBinary, nullable=False),  # its input and its answer, as chat messages
    Column("value", LargeBinary, nullable=False),  # the response object
    Column("created_at", BigInteger, nullable=False),
    Index("responses_episode", "episode_id"),
)


@dataclass(frozen=True, slots=True)
class Stored:
    """One response, as it is written."""

    response_id: str
    key_owner: str
    episode_id: str
    previous: str | None
    messages: list[dict[str, Any]]
    value: dict[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """What came before a follow-up."""

    episode_id: str
    messages: list[dict[str, Any]]


class Responses:
    """Reads go to a thread; writes are functions that the writer's jobs call."""

    def __init__(self, engine: Engine) -> None:
        create_tables(engine, METADATA)
        self._reading = reading(engine)

    async def conversation(self, owner: str, response_id: str) -> Conversation | None:
        """Everything said up to and with this response; None when a part of it is not here."""
        return await asyncio.to_thread(self._conversation, owner, response_id)

    async def find(self, owner: str, response_id: str) -> dict[str, Any] | None:
        """The response object."""
        return await asyncio.to_thread(self._find, owner, response_id)

    def _conversation(self, owner: str, response_id: str) -> Conversation | None:
        parts: list[list[dict[str, Any]]] = []
        wanted: str | None = response_id
        episode_id = ""
        with self._reading.connect() as conn:
            while wanted is not None:
                where = (RESPONSES.c.response_id == wanted, RESPONSES.c.key_owner == owner)
                row = conn.execute(select(RESPONSES).where(*where)).one_or_none()
                if row is None or len(parts) >= _LONGEST:
                    return None
                episode_id = episode_id or row.episode_id
                parts.append(orjson.loads(row.messages))
                wanted = row.previous
        return Conversation(episode_id, [message for part in reversed(parts) for message in part])

    def _find(self, owner: str, response_id: str) -> dict[str, Any] | None:
        where = (RESPONSES.c.response_id == response_id, RESPONSES.c.key_owner == owner)
        with self._reading.connect() as conn:
            value = conn.execute(select(RESPONSES.c.value).where(*where)).scalar()
        found: dict[str, Any] | None = None if value is None else orjson.loads(value)
        return found


def keep(conn: Connection, stored: Stored) -> None:
    """Write one."""
    row = {
        "response_id": stored.response_id,
        "key_owner": stored.key_owner,
        "episode_id": stored.episode_id,
        "previous": stored.previous,
        "messages": orjson.dumps(stored.messages),
        "value": orjson.dumps(stored.value),
        "created_at": stored.created_at,
    }
    conn.execute(insert(RESPONSES).values(**row))


def remove(conn: Connection, owner: str, response_id: str) -> bool:
    """Forget one; whether there was one."""
    where = (RESPONSES.c.response_id == response_id, RESPONSES.c.key_owner == owner)
    return bool(conn.execute(delete(RESPONSES).where(*where)).rowcount)


def remove_episode(conn: Connection, episode_id: str) -> None:
    """Forget all that a withdrawn episode said."""
    conn.execute(delete(RESPONSES).where(RESPONSES.c.episode_id == episode_id))
