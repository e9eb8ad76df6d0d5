"""The tables of a replay: of each episode the last experience that was sent, and the one that was rebuilt.

A revision never gives way to an older one, in whatever order they come.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    select,
)

from feedback.ledger import insert_into
from feedback.store import create_tables

_METADATA = MetaData()


def _experiences(name: str) -> Table:
    return Table(
        name,
        _METADATA,
        Column("episode_id", String, primary_key=True),
        Column("revision", Integer, nullable=False),
        Column("started_at", BigInteger, nullable=False),
        Column("value", LargeBinary, nullable=False),
    )


_SENT = _experiences("sent")
_REBUILT = _experiences("experiences")


@dataclass(frozen=True, slots=True)
class Sent:
    """One experience as its bytes on the bus."""

    episode_id: str
    revision: int
    started_at: int
    value: bytes


def create_sent(engine: Engine) -> None:
    """Make the tables that are missing."""
    create_tables(engine, _METADATA)


def keep_newest(conn: Connection, experiences: Sequence[Sent]) -> None:
    """Store what was sent, unless a newer revision of it is there."""
    _store(conn, _SENT, experiences)


def keep_rebuilt(conn: Connection, experiences: Sequence[Sent]) -> None:
    """Store what was rebuilt."""
    _store(conn, _REBUILT, experiences)


def last_sent(conn: Connection, episode_ids: Iterable[str]) -> dict[str, Sent]:
    """The last revision of these episodes that was sent; one that never was is left out."""
    rows = conn.execute(select(_SENT).where(_SENT.c.episode_id.in_(list(episode_ids))))
    return {row.episode_id: Sent(*row) for row in rows}


def rebuilt(conn: Connection) -> dict[str, bytes]:
    """Every rebuilt experience, by episode."""
    rows = conn.execute(select(_REBUILT.c.episode_id, _REBUILT.c.value))
    return {row.episode_id: row.value for row in rows}


def not_rebuilt(conn: Connection, *, since: int) -> list[str]:
    """Episodes that began after `since`, were sent, and did not come out."""
    query = select(_SENT.c.episode_id).where(
        _SENT.c.started_at >= since, _SENT.c.episode_id.not_in(select(_REBUILT.c.episode_id))
    )
    return list(conn.execute(query.order_by(_SENT.c.episode_id)).scalars())


def _store(conn: Connection, table: Table, experiences: Sequence[Sent]) -> None:
    if not experiences:
        return
    rows = [
        {
            "episode_id": each.episode_id,
            "revision": each.revision,
            "started_at": each.started_at,
            "value": each.value,
        }
        for each in experiences
    ]
    statement = insert_into(conn, table)
    newer = statement.on_conflict_do_update(
        index_elements=["episode_id"],
        set_={name: statement.excluded[name] for name in ("revision", "started_at", "value")},
        where=statement.excluded["revision"] > table.c.revision,
    )
    conn.execute(newer, rows)
