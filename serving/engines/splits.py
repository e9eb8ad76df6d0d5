"""What the bus tells the gateway: the newest traffic split, and what the trainer credited. Cached in SQL, so that it starts without Kafka."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from feedback.bus import Bus, BusError, Partition, Record, TopicMismatch
from feedback.dead_letters import dead_letter, letter_key
from feedback.outbox import Outbox, OutboxFull
from feedback.schemas import CREDITS as CREDITS_TOPIC
from feedback.schemas import (
    DEAD_LETTERS,
    TRAFFIC_SPLITS,
    AdapterRef,
    Credit,
    TrafficSplit,
    Unreadable,
)
from feedback.store import Zombie, advance, read_positions
from serving.engines.router import versions
from serving.tables import CREDITS, SPLITS

_log = logging.getLogger(__name__)
_READER = "serving"


class News:
    """Reads and writes both caches. `problem` says what is wrong with the bus's topics."""

    def __init__(self, engine: Engine, outbox: Outbox, agent: str, base_version: str) -> None:
        self._engine, self._outbox, self._agent, self._base = engine, outbox, agent, base_version
        self.problem: str | None = None

    def split(self) -> TrafficSplit:
        """The newest split known here; before any, the declared start for everybody."""
        with self._engine.connect() as conn:
            value = conn.execute(select(SPLITS.c.value).where(SPLITS.c.agent == self._agent)).scalar()
        if value is None:
            return TrafficSplit(
                agent=self._agent, generation=0, champion=AdapterRef(version=self._base), at=0
            )
        return TrafficSplit.from_bytes(value)

    def of_episode(self, conn: Connection, episode_id: str) -> list[dict[str, Any]]:
        """What each update made of an episode."""
        rows = conn.execute(select(CREDITS.c.value).where(CREDITS.c.episode_id == episode_id))
        return [orjson.loads(value) for value in rows.scalars()]

    def take(self, records: list[Record]) -> TrafficSplit | None:
        """Store what the records say; returns the newest split among them. What cannot be read is a dead letter, once."""
        newest: TrafficSplit | None = None
        with self._engine.begin() as conn:
            stored = read_positions(conn, _READER)
            for record in records:
                try:
                    message = _read(record)
                except Unreadable as error:
                    if record.offset >= stored.get((record.topic, record.partition), 0):
                        self._bury(conn, record, str(error))
                    continue
                if message.agent != self._agent:
                    continue
                if isinstance(message, Credit):
                    _keep_credit(conn, message)
                elif newest is None or message.generation > newest.generation:
                    newest = message
            if newest is not None:
                self._keep_split(conn, newest)
            _move(conn, records, stored)
        return newest

    def positions(self) -> dict[Partition, int]:
        """Where reading credits goes on. Splits are read from the earliest: the topic is compacted."""
        with self._engine.connect() as conn:
            found = read_positions(conn, _READER)
        return {where: offset for where, offset in found.items() if where[0] == CREDITS_TOPIC}

    def _keep_split(self, conn: Connection, split: TrafficSplit) -> None:
        known = conn.execute(select(SPLITS.c.generation).where(SPLITS.c.agent == self._agent)).scalar()
        if known is not None and known >= split.generation:
            return
        conn.execute(delete(SPLITS).where(SPLITS.c.agent == self._agent))
        row = {"agent": self._agent, "generation": split.generation, "value": split.to_bytes()}
        conn.execute(insert(SPLITS).values(**row))

    def _bury(self, conn: Connection, record: Record, reason: str) -> None:
        """Nothing waits for a dead letter: where the spool is full, the log has to do."""
        _log.error("unreadable: %s-%d at %d: %s", record.topic, record.partition, record.offset, reason)
        letter = dead_letter(record, reason, at=max(0, record.timestamp_ms))
        try:
            self._outbox.put(conn, DEAD_LETTERS, letter_key(record), letter.to_bytes(), letter.at)
        except OutboxFull as error:
            _log.error("no dead letter written: %s", error)


class Listener:
    """A thread that follows both topics. A bus that is down is silence; topics that are not ours are a problem to show."""

    def __init__(
        self, news: News, bus: Bus, on_split: Callable[[TrafficSplit], None], *, partitions: int
    ) -> None:
        self._news, self._bus, self._on_split, self._partitions = news, bus, on_split, partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="split-listener", daemon=True)

    def start(self) -> None:
        """Begin listening."""
        self._thread.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """End after the poll that runs."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._check_topics()
                self._follow()
            except (BusError, SQLAlchemyError, Zombie) as error:
                _log.warning("splits and credits are not read now: %s", error)
                self._stopping.wait(2.0)

    def _check_topics(self) -> None:
        """Chat goes on with topics of another kind; whoever looks must see it."""
        try:
            self._bus.ensure_topics(self._partitions)
            self._news.problem = None
        except TopicMismatch as error:
            self._news.problem = str(error)
            _log.error("the bus is not as it must be: %s", error)

    def _follow(self) -> None:
        reader = self._bus.reader([TRAFFIC_SPLITS, CREDITS_TOPIC])
        try:
            reader.seek(self._news.positions())
            while not self._stopping.is_set():
                records = reader.poll(0.2)
                split = self._news.take(records) if records else None
                if split is not None:
                    self._on_split(split)
        finally:
            reader.close()


def _read(record: Record) -> TrafficSplit | Credit:
    """Raises Unreadable, also for a split that names what is no version of its agent."""
    if record.topic == CREDITS_TOPIC:
        return Credit.from_bytes(record.value)
    split = TrafficSplit.from_bytes(record.value)
    for version in sorted(versions(split)):
        if version.rpartition("-")[0] != split.agent:
            raise Unreadable(f"{version} is not a version of {split.agent}")
    return split


def _keep_credit(conn: Connection, credit: Credit) -> None:
    where = (CREDITS.c.episode_id == credit.episode_id, CREDITS.c.update_id == credit.update_id)
    conn.execute(delete(CREDITS).where(*where))
    row = {"episode_id": credit.episode_id, "update_id": credit.update_id}
    conn.execute(insert(CREDITS).values(**row, value=credit.to_bytes()))


def _move(conn: Connection, records: list[Record], stored: Mapping[Partition, int]) -> None:
    moves: dict[Partition, tuple[int | None, int]] = {}
    for record in records:
        where = (record.topic, record.partition)
        if record.offset >= moves.get(where, (0, stored.get(where, 0)))[1]:
            moves[where] = (stored.get(where), record.offset + 1)
    advance(conn, _READER, moves)
