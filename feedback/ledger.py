"""The join's durable state: every record once, each episode's standing, and the pairs that measure the implicit signal.

Nothing here decides; all calls run inside the worker's transaction, which also moves the positions and the outbox.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from feedback.implicit import Pair
from feedback.store import create_tables

_METADATA = MetaData()

_RECORDS = Table(
    "records",
    _METADATA,
    Column("episode_id", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

_EPISODES = Table(
    "episodes",
    _METADATA,
    Column("episode_id", String, primary_key=True),
    Column("last_at", BigInteger, index=True),
    Column("due_at", BigInteger, index=True),
    Column("closed", Boolean, nullable=False),
    Column("withdrawn", Boolean, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("experience_id", String),
)

_PAIRS = Table(
    "pairs",
    _METADATA,
    Column("response_id", String, primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
    Column("text", Text, nullable=False),
    Column("thumb", Integer, nullable=False),
    Column("verdict", Integer, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Kept:
    """One record as stored."""

    episode_id: str
    key: str
    at: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an episode stands. `last_at` is its newest interaction (None: none came yet), `due_at` when to look again."""

    episode_id: str
    last_at: int | None = None
    due_at: int | None = None
    closed: bool = False
    withdrawn: bool = False
    revision: int = 0
    experience_id: str | None = None


def create_ledger(engine: Engine) -> None:
    """Make the tables that are missing."""
    create_tables(engine, _METADATA)


def keep(conn: Connection, records: Sequence[Kept]) -> None:
    """Store records; of one that is there already only an earlier time counts, so that their order does not."""
    if records:
        rows = [{"episode_id": r.episode_id, "key": r.key, "at": r.at, "body": r.body} for r in records]
        statement = insert_into(conn, _RECORDS)
        earlier = statement.on_conflict_do_update(
            index_elements=["episode_id", "key"],
            set_={"at": statement.excluded["at"]},
            where=statement.excluded["at"] < _RECORDS.c.at,
        )
        conn.execute(earlier, rows)


def records_of(conn: Connection, episode_ids: Iterable[str]) -> dict[str, list[Kept]]:
    """All records of these episodes."""
    found: defaultdict[str, list[Kept]] = defaultdict(list)
    for row in conn.execute(select(_RECORDS).where(_RECORDS.c.episode_id.in_(list(episode_ids)))):
        found[row.episode_id].append(Kept(row.episode_id, row.key, row.at, row.body))
    return dict(found)


def erase(conn: Connection, episode_id: str, response_ids: Iterable[str]) -> None:
    """Forget what was said in a withdrawn episode."""
    conn.execute(delete(_RECORDS).where(_RECORDS.c.episode_id == episode_id))
    conn.execute(delete(_PAIRS).where(_PAIRS.c.response_id.in_(list(response_ids))))


def standings(conn: Connection, episode_ids: Iterable[str]) -> dict[str, Standing]:
    """The standing of these episodes; one never seen has the default."""
    wanted = list(episode_ids)
    rows = conn.execute(select(_EPISODES).where(_EPISODES.c.episode_id.in_(wanted)))
    found = {row.episode_id: Standing(*row) for row in rows}
    return {episode_id: found.get(episode_id, Standing(episode_id)) for episode_id in wanted}


def due(conn: Connection, clock: int, *, limit: int) -> list[Standing]:
    """Episodes to look at by now, those waiting longest first."""
    query = select(_EPISODES).where(_EPISODES.c.due_at <= clock).order_by(_EPISODES.c.due_at).limit(limit)
    return [Standing(*row) for row in conn.execute(query)]


def stand(conn: Connection, changed: Sequence[Standing]) -> None:
    """Write standings."""
    if not changed:
        return
    columns = [column.name for column in _EPISODES.columns]
    rows = [dict(zip(columns, _values(each), strict=True)) for each in changed]
    statement = insert_into(conn, _EPISODES)
    updates = {name: statement.excluded[name] for name in columns[1:]}
    conn.execute(statement.on_conflict_do_update(index_elements=["episode_id"], set_=updates), rows)


def forget(conn: Connection, *, before: int, limit: int) -> tuple[int, list[str]]:
    """Drop settled episodes whose newest interaction is older than `before`, and feedback whose episode never came.

    Returns how many there were, and the ids of their replies.
    """
    recent = exists().where(_RECORDS.c.episode_id == _EPISODES.c.episode_id, _RECORDS.c.at >= before)
    old = or_(_EPISODES.c.last_at < before, _EPISODES.c.last_at.is_(None) & ~recent)
    found = select(_EPISODES.c.episode_id).where(_EPISODES.c.due_at.is_(None), old).limit(limit)
    episode_ids = list(conn.execute(found).scalars())
    return len(episode_ids), drop(conn, episode_ids)


def drop(conn: Connection, episode_ids: Sequence[str]) -> list[str]:
    """Remove episodes, their records and the words of their users; returns the ids of their replies."""
    reply = func.substr(_RECORDS.c.key, len("i/") + 1)
    replies = select(reply).where(_RECORDS.c.episode_id.in_(episode_ids), _RECORDS.c.key.like("i/%"))
    response_ids = list(conn.execute(replies).scalars())
    conn.execute(delete(_PAIRS).where(_PAIRS.c.response_id.in_(replies)))
    for table in (_RECORDS, _EPISODES):
        conn.execute(delete(table).where(table.c.episode_id.in_(episode_ids)))
    return response_ids


def in_time_order(conn: Connection, *, after: Standing | None, limit: int) -> list[Standing]:
    """Episodes that have an interaction, by the time of their newest; the next ones after a given one."""
    query = select(_EPISODES).where(_EPISODES.c.last_at.is_not(None))
    if after is not None:
        here = tuple_(_EPISODES.c.last_at, _EPISODES.c.episode_id)
        query = query.where(here > tuple_(literal(after.last_at), literal(after.episode_id)))
    ordered = query.order_by(_EPISODES.c.last_at, _EPISODES.c.episode_id).limit(limit)
    return [Standing(*row) for row in conn.execute(ordered)]


def is_empty(conn: Connection) -> bool:
    """Whether no record was ever kept here."""
    return conn.execute(select(_EPISODES.c.episode_id).limit(1)).first() is None


def unmatched(conn: Connection) -> int:
    """Episodes of which only feedback is known so far."""
    return conn.execute(
        select(func.count()).select_from(_EPISODES).where(_EPISODES.c.last_at.is_(None))
    ).scalar_one()


def note_pairs(conn: Connection, pairs: Sequence[Pair]) -> None:
    """Store pairs; of one that is known only the thumb changes, so that the verdict stays older than the thumb."""
    if not pairs:
        return
    rows = [
        {
            "response_id": p.response_id,
            "at": p.at,
            "text": p.text.replace("\0", " "),  # PostgreSQL stores none in text
            "thumb": p.thumb,
            "verdict": p.verdict,
        }
        for p in pairs
    ]
    statement = insert_into(conn, _PAIRS)
    conn.execute(
        statement.on_conflict_do_update(
            index_elements=["response_id"], set_={"thumb": statement.excluded.thumb}
        ),
        rows,
    )


def newest_pairs(conn: Connection, limit: int) -> list[Pair]:
    """The newest pairs, oldest first."""
    query = select(_PAIRS).order_by(_PAIRS.c.at.desc(), _PAIRS.c.response_id).limit(limit)
    return [
        Pair(response_id=row.response_id, text=row.text, thumb=row.thumb, verdict=row.verdict, at=row.at)
        for row in reversed(conn.execute(query).all())
    ]


def _values(standing: Standing) -> tuple[object, ...]:
    return (
        standing.episode_id,
        standing.last_at,
        standing.due_at,
        standing.closed,
        standing.withdrawn,
        standing.revision,
        standing.experience_id,
    )


def insert_into(conn: Connection, table: Table):  # type: ignore[no-untyped-def]
    """Both dialects say ON CONFLICT; SQLAlchemy has it once for each."""
    return postgres_insert(table) if conn.dialect.name == "postgresql" else sqlite_insert(table)
