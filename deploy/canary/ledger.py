"""What the controller must never forget, in SQL: versions, canaries, every transition, verdict, champion and split.

Events, verdicts, champions and splits are only ever appended. Functions take the caller's connection, so that what they
write, the offsets it came from and the message it causes are one transaction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)

from deploy.canary import units
from deploy.canary.saved import load, save
from deploy.canary.trial import FINISHED, Canary, Phase, Transition
from feedback import store
from feedback.schemas import AdapterRef, TrafficSplit, Verdict, VersionVerdict

METADATA = MetaData()
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")

VERSIONS = Table(
    "versions",
    METADATA,
    Column("version", String, primary_key=True),
    Column("digest", String),
    Column("uri", String),
    Column("parent", String),
    Column("source", String, nullable=False),
    Column("refused", String),
    Column("at", BigInteger, nullable=False),
)
CANARIES = Table(
    "canaries",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("canary_id", String, unique=True, nullable=False),
    Column("version", String, nullable=False, index=True),
    Column("phase", String, nullable=False, index=True),
    Column("verdict", String),
    Column("reason", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("state", Text),
    Column("first_generation", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
)
EVENTS = Table(
    "events",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("canary_id", String, index=True),
    Column("before", String),
    Column("after", String),
    Column("reason", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
_VERDICTS = Table(
    "verdicts",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("version", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("at", BigInteger, nullable=False),
)
_CHAMPIONS = Table(
    "champions",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("version", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
_SPLITS = Table(
    "splits",
    METADATA,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
_NOTES = Table(
    "notes", METADATA, Column("name", String, primary_key=True), Column("value", Text, nullable=False)
)

_PEOPLE = Table(
    "anchor_people",
    METADATA,
    Column("reign", BigInteger, primary_key=True, autoincrement=False),
    Column("rater", String, primary_key=True),
)

UNDO = "undo"
SPLIT_VERDICTS = 20


def create_tables(engine: Engine) -> None:
    """Make what is missing."""
    store.create_tables(engine, METADATA, units.METADATA)


@dataclass(frozen=True)
class CanaryRow:
    """A canary as listed; `state` is None until it begins."""

    canary_id: str
    version: str
    phase: Phase
    verdict: Verdict | None
    reason: str
    actor: str
    state: Canary | None
    first_generation: int | None
    created_at: int
    finished_at: int | None


@dataclass(frozen=True)
class Reign:
    """A champion's time: units begun at `generation` or later are about it."""

    seq: int
    version: str
    generation: int


def add_version(conn: Connection, ref: AdapterRef, *, parent: str | None, source: str, now: int) -> None:
    """Bind a name to bytes, once."""
    conn.execute(
        insert(VERSIONS).values(
            version=ref.version, digest=ref.digest, uri=ref.uri, parent=parent, source=source, at=now
        )
    )


def find_version(conn: Connection, version: str) -> Row[Any] | None:
    """The row of a name."""
    return conn.execute(select(VERSIONS).where(VERSIONS.c.version == version)).one_or_none()


def list_versions(conn: Connection) -> Sequence[Row[Any]]:
    """All, oldest first."""
    return conn.execute(select(VERSIONS).order_by(VERSIONS.c.version)).all()


def refused_digest(conn: Connection, digest: str | None) -> Row[Any] | None:
    """A refused version of the same bytes."""
    query = select(VERSIONS).where(VERSIONS.c.digest == digest, VERSIONS.c.refused.is_not(None))
    return conn.execute(query).first() if digest else None


def refused_ancestor(conn: Connection, version: str) -> str | None:
    """The nearest refused version that this one descends from."""
    row = find_version(conn, version)
    while row is not None and row.parent is not None and row.parent != row.version:
        row = find_version(conn, row.parent)
        if row is not None and row.refused is not None:
            return str(row.version)
    return None


def refuse(conn: Connection, version: str, reason: str | None) -> None:
    """It stays refused until `reason` None lifts it (an explicit act)."""
    conn.execute(update(VERSIONS).where(VERSIONS.c.version == version).values(refused=reason))


def reference(conn: Connection, version: str) -> AdapterRef:
    """The message part that names a version's bytes."""
    row = find_version(conn, version)
    if row is None:
        raise KeyError(version)
    return AdapterRef(version=row.version, uri=row.uri, digest=row.digest)


def add_canary(conn: Connection, canary_id: str, version: str, *, actor: str, now: int) -> None:
    """A canary that waits; `actor` offered it."""
    conn.execute(
        insert(CANARIES).values(
            canary_id=canary_id,
            version=version,
            phase=Phase.PENDING,
            reason="offered",
            actor=actor,
            created_at=now,
        )
    )


def save_canary(conn: Connection, canary: Canary, *, now: int) -> None:
    """The newest state of a canary."""
    conn.execute(
        update(CANARIES)
        .where(CANARIES.c.canary_id == canary.canary_id)
        .values(
            phase=canary.phase,
            verdict=canary.verdict,
            reason=canary.reason,
            state=save(canary),
            finished_at=now if canary.phase in FINISHED else None,
        )
    )


def set_first_generation(conn: Connection, canary_id: str, generation: int) -> None:
    """The first split that had it."""
    conn.execute(
        update(CANARIES).where(CANARIES.c.canary_id == canary_id).values(first_generation=generation)
    )


def find_canary(conn: Connection, canary_id: str) -> CanaryRow | None:
    """One canary."""
    row = conn.execute(select(CANARIES).where(CANARIES.c.canary_id == canary_id)).one_or_none()
    return None if row is None else _canary(row)


def list_canaries(conn: Connection, *phases: Phase, limit: int = 1000) -> list[CanaryRow]:
    """Canaries in these phases (none named: all), oldest first; the newest `limit` of them."""
    query = select(CANARIES).order_by(CANARIES.c.seq.desc()).limit(limit)
    if phases:
        query = query.where(CANARIES.c.phase.in_(phases))
    return [_canary(row) for row in conn.execute(query)][::-1]


def active_canary(conn: Connection) -> CanaryRow | None:
    """The one canary that has begun and not finished."""
    rows = list_canaries(conn, Phase.PROGRESSING, Phase.PAUSED, Phase.PROMOTING)
    return rows[0] if rows else None


def add_event(conn: Connection, canary_id: str | None, line: Transition) -> None:
    """Append one transition."""
    conn.execute(
        insert(EVENTS).values(
            canary_id=canary_id,
            before=line.before,
            after=line.after,
            reason=line.reason,
            actor=line.actor,
            evidence=json.dumps(line.evidence),
            at=line.at,
        )
    )


def add_note(
    conn: Connection, reason: str, *, actor: str, now: int, canary_id: str | None = None, **evidence: Any
) -> None:
    """Append an event that is no transition of a canary: a refusal, an undo, a new anchor."""
    conn.execute(
        insert(EVENTS).values(
            canary_id=canary_id, reason=reason, actor=actor, evidence=json.dumps(evidence), at=now
        )
    )


def list_events(
    conn: Connection, *, canary_id: str | None = None, after: int = 0, limit: int = 100
) -> list[dict[str, Any]]:
    """Events after a sequence number in order; with `after` 0 the newest `limit`."""
    newest_first = after == 0
    query = select(EVENTS).where(EVENTS.c.seq > after).limit(limit)
    query = query.order_by(EVENTS.c.seq.desc() if newest_first else EVENTS.c.seq)
    if canary_id is not None:
        query = query.where(EVENTS.c.canary_id == canary_id)
    events = [_event(row) for row in conn.execute(query)]
    return events[::-1] if newest_first else events


def add_verdict(conn: Connection, version: str, verdict: Verdict, *, reason: str, now: int) -> None:
    """Append how a version fared."""
    conn.execute(insert(_VERDICTS).values(version=version, verdict=verdict, reason=reason, at=now))


def newest_verdicts(conn: Connection) -> tuple[VersionVerdict, ...]:
    """The last ones, newest last, as a split carries them."""
    query = select(_VERDICTS).order_by(_VERDICTS.c.seq.desc()).limit(SPLIT_VERDICTS)
    rows = conn.execute(query).all()[::-1]
    return tuple(
        VersionVerdict(version=row.version, verdict=Verdict(row.verdict), reason=row.reason) for row in rows
    )


def last_verdict_at(conn: Connection, version: str) -> int | None:
    """When a version was last judged."""
    query = select(func.max(_VERDICTS.c.at)).where(_VERDICTS.c.version == version)
    return conn.execute(query).scalar_one_or_none()


def count_verdicts(conn: Connection) -> dict[str, int]:
    """How often each verdict was given; all of them named."""
    query = select(_VERDICTS.c.verdict, func.count()).group_by(_VERDICTS.c.verdict)
    return {verdict.value: 0 for verdict in Verdict} | {row[0]: row[1] for row in conn.execute(query)}


def crown(conn: Connection, version: str, *, kind: str, generation: int, now: int) -> None:
    """Append a champion: `start`, `promoted`, `anchor`, or `undo` (the one before comes back)."""
    conn.execute(insert(_CHAMPIONS).values(version=version, kind=kind, generation=generation, at=now))


def champions(conn: Connection) -> list[Reign]:
    """The stack of champions, the present one last. An undo takes the last one off, so two go back twice."""
    stack: list[Reign] = []
    for row in conn.execute(select(_CHAMPIONS).order_by(_CHAMPIONS.c.seq)):
        if row.kind == UNDO:
            stack = [*stack[:-2], Reign(row.seq, row.version, row.generation)]
        else:
            stack.append(Reign(row.seq, row.version, row.generation))
    return stack


def add_split(conn: Connection, split: TrafficSplit) -> None:
    """Append; a second writer of the same generation fails on the primary key."""
    conn.execute(
        insert(_SPLITS).values(generation=split.generation, body=split.model_dump_json(), at=split.at)
    )


def newest_split(conn: Connection) -> TrafficSplit | None:
    """The split in force."""
    body = conn.execute(select(_SPLITS.c.body).order_by(_SPLITS.c.generation.desc()).limit(1)).scalar()
    return None if body is None else TrafficSplit.model_validate_json(body)


def read_note(conn: Connection, name: str) -> Any:
    """A small JSON value; None when it was never written."""
    value = conn.execute(select(_NOTES.c.value).where(_NOTES.c.name == name)).scalar_one_or_none()
    return None if value is None else json.loads(value)


def write_note(conn: Connection, name: str, value: Any) -> None:
    """Replace a small JSON value."""
    body = json.dumps(value)
    changed = conn.execute(update(_NOTES).where(_NOTES.c.name == name).values(value=body))
    if changed.rowcount == 0:
        conn.execute(insert(_NOTES).values(name=name, value=body))


def first_of_person(conn: Connection, reign: int, rater: str) -> bool:
    """Whether this person is new in this reign; asking makes them known."""
    where = (_PEOPLE.c.reign == reign, _PEOPLE.c.rater == rater)
    if conn.execute(select(_PEOPLE.c.reign).where(*where)).first() is not None:
        return False
    conn.execute(insert(_PEOPLE).values(reign=reign, rater=rater))
    return True


def _canary(row: Row[Any]) -> CanaryRow:
    return CanaryRow(
        canary_id=row.canary_id,
        version=row.version,
        phase=Phase(row.phase),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        reason=row.reason,
        actor=row.actor,
        state=None if row.state is None else load(row.state),
        first_generation=row.first_generation,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _event(row: Row[Any]) -> dict[str, Any]:
    evidence: Mapping[str, Any] = json.loads(row.evidence)
    return {
        "seq": row.seq,
        "canary_id": row.canary_id,
        "from": row.before,
        "to": row.after,
        "reason": row.reason,
        "actor": row.actor,
        "evidence": evidence,
        "at": row.at,
    }
