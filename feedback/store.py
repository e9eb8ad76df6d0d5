"""SQL state that must survive: one SQLite file (or PostgreSQL schema) per role, and the positions of its readers.

Positions move in the same transaction as the state they produced, by compare-and-set: a process that was presumed
dead and comes back cannot move them again.
"""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random

from feedback.bus import Partition

_METADATA = MetaData()

_POSITIONS = Table(
    "positions",
    _METADATA,
    Column("reader", String, primary_key=True),
    Column("topic", String, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
)

_MAKING = 7_218_004
"""The advisory lock under which PostgreSQL's schemas and tables are made."""

_ROLE = re.compile(r"^[a-z][a-z0-9_]{0,40}$")


class Zombie(RuntimeError):
    """Somebody else moved this reader's positions: this process must stop and start again from what is stored."""


def open_database(role: str, *, home: Path, url: str = "") -> Engine:
    """The role's database: the schema `<role>` of the PostgreSQL at `url`; without one `<home>/db/<role>.sqlite`.

    Write transactions (`engine.begin()`) take SQLite's write lock when they begin, so that two of them never
    deadlock half way; use `reading(engine)` where nothing is written. What rows hold is never part of an error's text.
    """
    if not _ROLE.match(role):
        raise ValueError(f"{role!r} is not a role name")
    engine = _open_postgres(url, role) if url else _open_sqlite(home / "db" / f"{role}.sqlite")
    create_tables(engine, _METADATA)
    return engine


def create_tables(engine: Engine, *tables: MetaData) -> None:
    """Make what is missing of a role's schema; its replicas may do so at once."""
    with engine.begin() as conn:
        if conn.dialect.name == "postgresql":
            # IF NOT EXISTS alone still fails where two make the same thing in one moment.
            conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING})
            role = conn.execute(text("SHOW search_path")).scalar_one()
            conn.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{role}"'))
        for metadata in tables:
            metadata.create_all(conn)


def reading(engine: Engine) -> Engine:
    """The same database for transactions that only read: they never wait for a writer."""
    return engine.execution_options(read_only=True)


def read_positions(conn: Connection, reader: str) -> dict[Partition, int]:
    """Where a reader goes on, by (topic, partition)."""
    rows = conn.execute(select(_POSITIONS).where(_POSITIONS.c.reader == reader))
    return {(row.topic, row.partition): row.next_offset for row in rows}


def advance(conn: Connection, reader: str, moves: Mapping[Partition, tuple[int | None, int]]) -> None:
    """Move positions from what this process believes is stored (None: nothing) to the next. Raises Zombie."""
    for (topic, partition), (old, new) in moves.items():
        where = {"reader": reader, "topic": topic, "partition": partition}
        if old is None:
            try:
                conn.execute(insert(_POSITIONS).values(**where, next_offset=new))
            except IntegrityError as error:
                raise Zombie(f"{reader}: {topic}-{partition} was already read by another process") from error
            continue
        moved = conn.execute(
            update(_POSITIONS)
            .where(
                _POSITIONS.c.reader == reader,
                _POSITIONS.c.topic == topic,
                _POSITIONS.c.partition == partition,
                _POSITIONS.c.next_offset == old,
            )
            .values(next_offset=new)
        )
        if moved.rowcount != 1:
            raise Zombie(f"{reader}: {topic}-{partition} is no longer at {old}: another process moved it")


def _open_sqlite(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}", hide_parameters=True)
    event.listen(engine, "connect", _tune_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _tune_sqlite(connection: Any, _record: Any) -> None:
    """Survives kill -9 of the process at every line; a power cut may take the last commits, never the file."""
    connection.isolation_level = None
    _write_ahead(connection)
    for pragma in (
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "busy_timeout=5000",
        "cache_size=-65536",
    ):
        connection.execute(f"PRAGMA {pragma}")


@retry(
    retry=retry_if_exception_type(sqlite3.OperationalError),
    wait=wait_random(0.01, 0.05),
    stop=stop_after_delay(5),
    reraise=True,
)
def _write_ahead(connection: Any) -> None:
    """SQLite does not wait for its own lock here: of processes that start at once, all but one would be refused."""
    connection.execute("PRAGMA journal_mode=WAL")


def _begin_sqlite(conn: Connection) -> None:
    read_only = conn.get_execution_options().get("read_only", False)
    conn.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _open_postgres(url: str, role: str) -> Engine:
    options = {"options": f"-csearch_path={role}"}
    return create_engine(url, connect_args=options, pool_pre_ping=True, hide_parameters=True)
