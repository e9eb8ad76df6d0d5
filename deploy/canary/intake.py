"""What the bus brings: offers and episodes into the ledger, and the positions they came from in the same transaction."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from deploy.canary import history, units
from deploy.canary.sampling import note_sampling
from deploy.canary.steering import TRAINER, Refused, Steering
from deploy.canary.trial import CONTROLLER
from feedback.bus import Bus, BusError, Partition, Reader, Record, TopicMismatch
from feedback.dead_letters import dead_letter, letter_key
from feedback.outbox import Outbox
from feedback.schemas import (
    DEAD_LETTERS,
    EXPERIENCES,
    UPDATES,
    AdapterRef,
    Decision,
    Experience,
    Unreadable,
    Update,
)
from feedback.store import advance, read_positions, reading

READER = "controller"
TOPICS = (EXPERIENCES, UPDATES)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """What one look at the bus brought, how far each partition is read now, and how much is left."""

    records: Sequence[Record]
    watermarks: units.Watermarks
    lag: Mapping[Partition, int]


class Intake:
    """Reads from the positions in the ledger. After a transaction that failed, `close` goes back to them."""

    def __init__(self, bus: Bus, engine: Engine, outbox: Outbox, *, partitions: int, poll_s: float) -> None:
        self._bus = bus
        self._engine = engine
        self._outbox = outbox
        self._partitions = partitions
        self._poll_s = poll_s
        self._is_away = False
        self._reader: Reader | None = None
        self._positions: dict[Partition, int] = {}
        self._read_until: dict[Partition, int] = {}

    def read(self) -> Batch:
        """The next records. An absent bus is silence, in which no unit is taken: its last revision may be on the way."""
        try:
            reader = self._reader or self._open()
            records = reader.poll(self._poll_s)
            lag = reader.lag()
        except TopicMismatch:
            raise
        except BusError as error:
            if not self._is_away:
                log.warning("the bus is away: %s", error)
            self._is_away = True
            time.sleep(self._poll_s)
            return Batch((), {}, {})
        if self._is_away:
            log.warning("the bus is back")
        self._is_away = False
        for record in records:
            self._read_until[record.topic, record.partition] = record.timestamp_ms
        marks = {where: None if left <= 0 else self._read_until.get(where, 0) for where, left in lag.items()}
        return Batch(records, marks, lag)

    def take_in(self, conn: Connection, batch: Batch, *, steering: Steering) -> dict[Partition, int]:
        """Write down what came; what cannot be read becomes a dead letter. Returns the new positions."""
        moves: dict[Partition, tuple[int | None, int]] = {}
        for record in batch.records:
            where = (record.topic, record.partition)
            old = moves[where][0] if where in moves else self._positions.get(where)
            moves[where] = (old, record.offset + 1)
            try:
                _take_one(conn, record, steering=steering)
            except Unreadable as error:
                self._bury(conn, record, reason=str(error), now=steering.clock())
        advance(conn, READER, moves)
        return {where: new for where, (_, new) in moves.items()}

    def committed(self, positions: Mapping[Partition, int]) -> None:
        """The transaction of `take_in` is durable."""
        self._positions |= positions

    def close(self) -> None:
        """Let go of the reader; the next `read` starts from what is stored."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._read_until = {}

    def _open(self) -> Reader:
        self._bus.ensure_topics(self._partitions)
        reader = self._bus.reader(TOPICS)
        with reading(self._engine).begin() as conn:
            self._positions = read_positions(conn, READER)
        reader.seek(self._positions)
        self._reader = reader
        return reader

    def _bury(self, conn: Connection, record: Record, *, reason: str, now: int) -> None:
        log.warning("dead letter: %s-%d@%d: %s", record.topic, record.partition, record.offset, reason)
        letter = dead_letter(record, reason, at=now)
        self._outbox.put(conn, DEAD_LETTERS, letter_key(record), letter.to_bytes(), now)


def _take_one(conn: Connection, record: Record, *, steering: Steering) -> None:
    mine = steering.agent.agent
    if record.topic == EXPERIENCES:
        experience = Experience.from_bytes(record.value)
        if experience.agent == mine:
            units.note(conn, experience, record)
            note_sampling(conn, experience)
        return
    offer = Update.from_bytes(record.value)
    if offer.agent == mine and offer.version is not None and offer.decision is not Decision.REFUSED:
        ref = AdapterRef(version=offer.version, uri=offer.uri, digest=offer.digest)
        try:
            steering.offer(conn, ref, parent=offer.parent, actor=TRAINER)
        except Refused as error:
            now = steering.clock()
            history.add_note(conn, f"refused: {error}", actor=CONTROLLER, now=now, version=ref.version)
