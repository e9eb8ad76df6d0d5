"""What is known of each version and canary, in SQL, and small notes to the controller itself.

Functions take the caller's connection, so that what they write, the offsets it came from and the message it causes are
one transaction.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from deploy.canary.saved import load, save
from deploy.canary.tables import CANARIES, NOTES, PEOPLE, VERSIONS
from deploy.canary.trial import FINISHED, Canary, Phase
from feedback.schemas import AdapterRef, Verdict


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


def newest_promotion(conn: Connection, version: str) -> CanaryRow | None:
    """The last canary that made this version champion."""
    query = select(CANARIES).where(CANARIES.c.version == version, CANARIES.c.verdict == Verdict.PROMOTED)
    row = conn.execute(query.order_by(CANARIES.c.seq.desc()).limit(1)).first()
    return None if row is None else _canary(row)


def read_note(conn: Connection, name: str) -> Any:
    """A small JSON value; None when it was never written."""
    value = conn.execute(select(NOTES.c.value).where(NOTES.c.name == name)).scalar_one_or_none()
    return None if value is None else json.loads(value)


def write_note(conn: Connection, name: str, value: Any) -> None:
    """Replace a small JSON value."""
    body = json.dumps(value)
    changed = conn.execute(update(NOTES).where(NOTES.c.name == name).values(value=body))
    if changed.rowcount == 0:
        conn.execute(insert(NOTES).values(name=name, value=body))


def first_of_person(conn: Connection, reign: int, person: str) -> bool:
    """Whether this person is new in this reign; asking makes them known."""
    where = (PEOPLE.c.reign == reign, PEOPLE.c.person == person)
    if conn.execute(select(PEOPLE.c.reign).where(*where)).first() is not None:
        return False
    conn.execute(insert(PEOPLE).values(reign=reign, person=person))
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
