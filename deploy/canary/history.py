"""What became of versions and canaries, only ever appended: transitions, verdicts, champions, splits.

Functions take the caller's connection, so that what they write, the offsets it came from and the message it causes are
one transaction.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from deploy.canary.tables import CHAMPIONS, EVENTS, SPLITS, VERDICTS
from deploy.canary.trial import Transition
from feedback.schemas import TrafficSplit, Verdict, VersionVerdict

UNDO = "undo"
SPLIT_VERDICTS = 20


@dataclass(frozen=True)
class Reign:
    """A champion's time: units begun at `generation` or later are about it."""

    seq: int
    version: str
    generation: int


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
    conn.execute(insert(VERDICTS).values(version=version, verdict=verdict, reason=reason, at=now))


def newest_verdicts(conn: Connection) -> tuple[VersionVerdict, ...]:
    """The last ones, newest last, as a split carries them."""
    query = select(VERDICTS).order_by(VERDICTS.c.seq.desc()).limit(SPLIT_VERDICTS)
    rows = conn.execute(query).all()[::-1]
    return tuple(
        VersionVerdict(version=row.version, verdict=Verdict(row.verdict), reason=row.reason) for row in rows
    )


def last_verdict_at(conn: Connection, version: str) -> int | None:
    """When a version was last judged."""
    query = select(func.max(VERDICTS.c.at)).where(VERDICTS.c.version == version)
    return conn.execute(query).scalar_one_or_none()


def count_verdicts(conn: Connection) -> dict[str, int]:
    """How often each verdict was given; all of them named."""
    query = select(VERDICTS.c.verdict, func.count()).group_by(VERDICTS.c.verdict)
    return {verdict.value: 0 for verdict in Verdict} | {row[0]: row[1] for row in conn.execute(query)}


def crown(conn: Connection, version: str, *, kind: str, generation: int, now: int) -> None:
    """Append a champion: `start`, `promoted`, `anchor`, or `undo` (the one before comes back)."""
    conn.execute(insert(CHAMPIONS).values(version=version, kind=kind, generation=generation, at=now))


def champions(conn: Connection) -> list[Reign]:
    """The stack of champions, the present one last. An undo takes the last one off, so two go back twice."""
    stack: list[Reign] = []
    for row in conn.execute(select(CHAMPIONS).order_by(CHAMPIONS.c.seq)):
        if row.kind == UNDO:
            stack = [*stack[:-2], Reign(row.seq, row.version, row.generation)]
        else:
            stack.append(Reign(row.seq, row.version, row.generation))
    return stack


def add_split(conn: Connection, split: TrafficSplit) -> None:
    """Append; a second writer of the same generation fails on the primary key."""
    conn.execute(
        insert(SPLITS).values(generation=split.generation, body=split.model_dump_json(), at=split.at)
    )


def newest_split(conn: Connection) -> TrafficSplit | None:
    """The split in force."""
    body = conn.execute(select(SPLITS.c.body).order_by(SPLITS.c.generation.desc()).limit(1)).scalar()
    return None if body is None else TrafficSplit.model_validate_json(body)


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
