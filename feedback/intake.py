"""Records become state: what can be read is kept once, what cannot becomes a dead letter, and its neighbours go on."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from feedback import ledger
from feedback.bus import Record
from feedback.dead_letters import dead_letter, letter_key
from feedback.join import EpisodeMessage, Stamped, record_key
from feedback.ledger import Kept, Standing
from feedback.outbox import Outgoing
from feedback.schemas import (
    DEAD_LETTERS,
    INTERACTIONS,
    Feedback,
    Interaction,
    Unreadable,
    read_episode_record,
)

DUE_NOW = 0
"""The due time of an episode that waits for nothing."""


@dataclass
class Intake:
    """What one batch brought besides state."""

    dead: list[Outgoing] = field(default_factory=list)
    dead_by_topic: Counter[str] = field(default_factory=Counter)
    foreign_by_topic: Counter[str] = field(default_factory=Counter)


def take_in(conn: Connection, records: Sequence[Record], *, agent: str, idle_ms: int) -> Intake:
    """Keep the records of this agent and move their episodes' standing."""
    intake = Intake()
    arrived: defaultdict[str, list[tuple[int, EpisodeMessage, bytes]]] = defaultdict(list)
    for record in records:
        try:
            message = read_message(record.topic, record.value)
            _check_names(message)
        except Unreadable as reason:
            letter = dead_letter(record, str(reason), at=max(0, record.timestamp_ms))
            intake.dead.append(Outgoing(DEAD_LETTERS, letter_key(record), letter.to_bytes(), letter.at))
            intake.dead_by_topic[record.topic] += 1
            continue
        if message.agent != agent:
            intake.foreign_by_topic[record.topic] += 1
            continue
        # A record without a time has a negative one.
        arrived[message.episode_id].append((max(0, record.timestamp_ms), message, record.value or b""))
    known = {
        episode: standing
        for episode, standing in ledger.standings(conn, arrived).items()
        if not standing.withdrawn
    }
    ledger.keep(
        conn,
        [
            Kept(episode, record_key(message), at, body)
            for episode in known
            for at, message, body in arrived[episode]
        ],
    )
    ledger.stand(
        conn,
        [
            touched(standing, [Stamped(at, message) for at, message, _ in arrived[episode]], idle_ms=idle_ms)
            for episode, standing in known.items()
        ],
    )
    return intake


def touched(standing: Standing, records: Iterable[Stamped], *, idle_ms: int) -> Standing:
    """When to look at an episode again after these records came: a repeat only causes one look too many."""
    for record in records:
        if isinstance(record.message, Interaction):
            last = max(standing.last_at or 0, record.at)
            standing = replace(standing, last_at=last, due_at=last + idle_ms, closed=False)
        elif not isinstance(record.message, Feedback) or standing.closed:
            standing = replace(standing, due_at=DUE_NOW)
    return standing


def read_message(topic: str, value: bytes | None) -> EpisodeMessage:
    """Read a record's value as what its topic holds. Raises Unreadable."""
    return read_episode_record(value) if topic == INTERACTIONS else Feedback.from_bytes(value)


def _check_names(message: EpisodeMessage) -> None:
    """PostgreSQL stores no NUL in text, and no id of ours has one. Raises Unreadable."""
    if "\0" in message.episode_id or "\0" in record_key(message):
        raise Unreadable("an id holds a NUL")
