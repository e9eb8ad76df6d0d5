"""What is to be sent, durable before it is sent: rows join the caller's transaction and leave in order, at least once.

A row is deleted only after the bus acknowledged it, so a crash sends it again and readers drop repeats by id.
"""

import logging
import threading
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
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from feedback.bus import Bus, BusError, check_size
from feedback.store import create_tables, reading

_log = logging.getLogger(__name__)

_METADATA = MetaData()

_ROWS = Table(
    "outbox",
    _METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("topic", String, nullable=False),
    Column("key", String, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("timestamp_ms", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

_FLUSH_S = 20.0


class OutboxFull(RuntimeError):
    """The spool reached its bound: nothing more is accepted until the bus takes some of it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record on its way out."""

    topic: str
    key: str
    value: bytes
    timestamp_ms: int


class Outbox:
    """A bounded, durable queue in the role's own database."""

    def __init__(self, engine: Engine, bound: int) -> None:
        self.bound = bound
        self._engine = engine
        self._reading = reading(engine)
        create_tables(engine, _METADATA)

    def put(self, conn: Connection, topic: str, key: str, value: bytes, timestamp_ms: int) -> int:
        """Add one row to the caller's transaction. Raises OutboxFull, or Oversized for what no broker takes."""
        return self.put_all(conn, [Outgoing(topic, key, value, timestamp_ms)])

    def put_all(self, conn: Connection, records: Sequence[Outgoing]) -> int:
        """Add rows in order to the caller's transaction; returns how many rows wait now."""
        if not records:
            return _depth(conn)
        for record in records:
            check_size(record.topic, record.value)
        waiting = _depth(conn) + len(records)
        if waiting > self.bound:
            raise OutboxFull(f"{waiting - len(records)} of {self.bound} records wait for the bus")
        conn.execute(insert(_ROWS), [_columns(record) for record in records])
        return waiting

    def depth(self) -> int:
        """Rows that wait (an upper bound where transactions were rolled back on PostgreSQL)."""
        with self._reading.connect() as conn:
            return _depth(conn)

    def drain(self, bus: Bus, *, batch: int = 500) -> int:
        """Send the oldest rows, and delete them once acknowledged. Returns how many; raises BusError."""
        with self._reading.connect() as conn:
            rows = conn.execute(select(_ROWS).order_by(_ROWS.c.id).limit(batch)).all()
        if not rows:
            return 0
        for row in rows:
            bus.send(row.topic, row.key, row.value, timestamp_ms=row.timestamp_ms)
        bus.flush(_FLUSH_S)
        self._forget([row.id for row in rows])
        return len(rows)

    def _forget(self, ids: Iterable[int]) -> None:
        with self._engine.begin() as conn:
            conn.execute(delete(_ROWS).where(_ROWS.c.id.in_(list(ids))))


class Drainer:
    """A thread that drains one outbox until it is stopped. A bus that is down only makes the outbox longer."""

    def __init__(self, outbox: Outbox, bus: Bus, interval_s: float = 0.2) -> None:
        self._outbox = outbox
        self._bus = bus
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-drainer", daemon=True)

    def start(self) -> None:
        """Begin draining."""
        self._thread.start()

    def wake(self) -> None:
        """Something was put: do not wait for the interval."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """One last drain, then end. What the bus does not take stays in the outbox."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failing = False
        while True:
            last = self._stopping.is_set()
            try:
                while self._outbox.drain(self._bus):
                    pass
                if failing:
                    _log.warning("outbox drains again")
                failing = False
            except (BusError, SQLAlchemyError) as error:
                if not failing:
                    _log.warning("outbox waits: %s", error)
                failing = True
            if last:
                return
            if failing:
                self._stopping.wait(max(1.0, self._interval_s))
            else:
                self._wake.wait(self._interval_s)
            self._wake.clear()


def _columns(record: Outgoing) -> dict[str, object]:
    return {
        "topic": record.topic,
        "key": record.key,
        "value": record.value,
        "timestamp_ms": record.timestamp_ms,
    }


def _depth(conn: Connection) -> int:
    """newest - oldest + 1: two index look-ups instead of a count, since rows leave from the front."""
    oldest = select(func.min(_ROWS.c.id)).scalar_subquery()
    newest = select(func.max(_ROWS.c.id)).scalar_subquery()
    low, high = conn.execute(select(oldest, newest)).one()
    return 0 if low is None else int(high) - int(low) + 1
