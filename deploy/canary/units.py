"""Episodes as units of evidence: noted when they close, taken once at their cut-off, newest revision first read by then.

An episode counts only for the canary it was assigned under, once. One that two versions answered, that an administrator
steered, or that was withdrawn is left out with its reason; what arrives after the cut-off changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    bindparam,
    func,
    insert,
    select,
    update,
)

from deploy.canary.guardrails import TRAILING, TRAILING_MIN, expected_clean
from deploy.canary.trial import Known
from feedback.bus import Record
from feedback.people import nobody
from feedback.schemas import Experience, Indicators

METADATA = MetaData()

UNITS = Table(
    "units",
    METADATA,
    Column("episode_id", String, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("arm", String, nullable=False),
    Column("version", String, nullable=False),
    Column("canary_id", String),
    Column("generation", BigInteger, nullable=False),
    Column("propensity", Float, nullable=False),
    Column("person", String, nullable=False),
    Column("outcome", Integer),
    Column("thumb", Integer),
    Column("indicators", Text, nullable=False),
    Column("left_out", String),
    Column("topic", String, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("closed_at", BigInteger, nullable=False),
    Column("cutoff_at", BigInteger, nullable=False, index=True),
    Column("seen", Boolean, nullable=False, index=True),
    Column("taken", Integer, index=True),
)
"""`taken` is the order in which units were taken, None while they wait."""

_SEEN = update(UNITS).where(UNITS.c.episode_id == bindparam("which")).values(seen=True)
_TAKEN = update(UNITS).where(UNITS.c.episode_id == bindparam("which")).values(taken=bindparam("place"))

SETTLE_MS = 2_000
"""How long after a cut-off its unit is taken: what was rated at the last moment is still on the bus."""

LEFT_OUT = ("mixed", "mixed_version", "evaluation")

Watermarks = Mapping[tuple[str, int], int | None]
"""Per partition: None when all of it was read, else the timestamp of the last record read."""


def note(conn: Connection, experience: Experience, record: Record) -> bool:
    """Keep this revision if the unit still waits and it was written by the cut-off. False: nothing changed."""
    known = conn.execute(
        select(UNITS.c.revision, UNITS.c.taken, UNITS.c.cutoff_at).where(
            UNITS.c.episode_id == experience.episode_id
        )
    ).one_or_none()
    values = _columns(experience) | {"topic": record.topic, "partition": record.partition}
    if known is None:
        conn.execute(insert(UNITS).values(**values, seen=False))
        return True
    if known.taken is not None or experience.revision <= known.revision:
        return False
    if record.timestamp_ms > known.cutoff_at and not experience.withdrawn:
        return False
    conn.execute(update(UNITS).where(UNITS.c.episode_id == experience.episode_id).values(**values))
    return True


def unseen(conn: Connection) -> Sequence[Row[Any]]:
    """Closed episodes whose facts were not counted yet, in the order they closed."""
    query = select(UNITS).where(UNITS.c.seen.is_(False))
    return conn.execute(query.order_by(UNITS.c.closed_at, UNITS.c.episode_id)).all()


def due(conn: Connection, watermarks: Watermarks, *, now: int) -> list[Row[Any]]:
    """Units whose cut-off has passed and whose revisions up to it have surely been read, in order of cut-off."""
    query = select(UNITS).where(UNITS.c.taken.is_(None), UNITS.c.cutoff_at <= now - SETTLE_MS)
    rows = conn.execute(query.order_by(UNITS.c.cutoff_at, UNITS.c.episode_id)).all()
    return [row for row in rows if _is_read(row, watermarks)]


def mark_seen(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    """Their facts are counted."""
    if rows:
        conn.execute(_SEEN, [{"which": row.episode_id} for row in rows])


def mark_taken(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    """They are taken, in this order, and never again."""
    if rows:
        first = (conn.execute(select(func.max(UNITS.c.taken))).scalar() or 0) + 1
        conn.execute(
            _TAKEN,
            [{"which": row.episode_id, "place": place} for place, row in enumerate(rows, start=first)],
        )


def indicators(row: Row[Any]) -> Indicators:
    """The facts of an episode."""
    return Indicators.model_validate_json(row.indicators)


def trailing(conn: Connection, version: str, *, canary_id: str | None = None) -> list[Indicators]:
    """Facts of the last episodes that this version answered alone, whatever arm it was then; or of one canary's only."""
    query = _answered_by(version).where(UNITS.c.seen.is_(True))
    if canary_id is not None:
        query = query.where(UNITS.c.canary_id == canary_id)
    return [indicators(row) for row in conn.execute(query.order_by(UNITS.c.closed_at.desc()).limit(TRAILING))]


def known_of(conn: Connection, version: str) -> Known:
    """What is known of a champion from units already taken."""
    query = _answered_by(version).where(UNITS.c.taken.is_not(None), UNITS.c.outcome.is_not(None))
    outcomes = [row.outcome for row in conn.execute(query.order_by(UNITS.c.taken.desc()).limit(TRAILING))]
    mean = sum(outcomes) / len(outcomes) if len(outcomes) >= TRAILING_MIN else None
    return Known(mean, expected_clean(trailing(conn, version)))


def bypassed(conn: Connection, canary_id: str, *, since: int) -> int:
    """Live episodes closed since then that were not assigned under this canary."""
    query = select(func.count()).where(
        UNITS.c.closed_at > since,
        UNITS.c.arm != "holdout",
        UNITS.c.canary_id.is_distinct_from(canary_id),
    )
    return conn.execute(query).scalar_one()


def turned_away(conn: Connection, *, generation: int) -> int:
    """Live episodes under a canary's split that were assigned without it: the gateway's engines refused the candidate."""
    query = select(func.count()).where(
        UNITS.c.generation >= generation,
        UNITS.c.arm != "holdout",
        UNITS.c.canary_id.is_(None),
        UNITS.c.left_out.is_(None),
    )
    return conn.execute(query).scalar_one()


def totals(conn: Connection) -> dict[str, dict[str, int]]:
    """Episodes taken and outcomes known, by arm."""
    query = (
        select(UNITS.c.arm, func.count(), func.count(UNITS.c.outcome), func.sum(UNITS.c.outcome))
        .where(UNITS.c.taken.is_not(None))
        .group_by(UNITS.c.arm)
    )
    return {
        arm: {"episodes": episodes, "outcomes": outcomes, "good": int(good or 0)}
        for arm, episodes, outcomes, good in conn.execute(query)
    }


def _answered_by(version: str) -> Select[Any]:
    return select(UNITS).where(
        UNITS.c.version == version, UNITS.c.arm != "holdout", UNITS.c.left_out.is_(None)
    )


def _is_read(row: Row[Any], watermarks: Watermarks) -> bool:
    where = (row.topic, row.partition)
    if where not in watermarks:
        return False
    read_until = watermarks[where]
    return read_until is None or read_until > row.cutoff_at


def _columns(experience: Experience) -> dict[str, Any]:
    left_out = "withdrawn" if experience.withdrawn else None
    left_out = left_out or next((flag for flag in experience.flags if flag in LEFT_OUT), None)
    return {
        "episode_id": experience.episode_id,
        "revision": experience.revision,
        "arm": experience.arm,
        "version": experience.adapter_version,
        "canary_id": experience.canary_id,
        "generation": experience.generation,
        "propensity": experience.propensity,
        "person": _person(experience),
        "outcome": experience.outcome,
        "thumb": experience.thumb,
        "indicators": json.dumps(experience.indicators.model_dump()),
        "left_out": left_out,
        "closed_at": experience.closed_at,
        "cutoff_at": experience.cutoff_at,
    }


def _person(experience: Experience) -> str:
    """Who chatted, whoever rated it: one program may rate everybody's episodes."""
    return experience.user or nobody(experience.key_owner, experience.episode_id)
