"""What the bus tells the gateway: the newest traffic split, and what the trainer credited. Cached in SQL, so that it starts without Kafka."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from feedback.bus import Bus, BusError, Record
from feedback.schemas import CREDITS as CREDITS_TOPIC
from feedback.schemas import TRAFFIC_SPLITS, AdapterRef, Credit, TrafficSplit, Unreadable
from feedback.store import Zombie, advance, read_positions
from serving.tables import CREDITS, SPLITS

_log = logging.getLogger(__name__)
_READER = "serving"


class News:
    """Reads and writes both caches."""

    def __init__(self, engine: Engine, agent: str, base_version: str) -> None:
        self._engine, self._agent, self._base = engine, agent, base_version

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
        """Store what the records say; returns the newest split among them."""
        with self._engine.begin() as conn:
            split = self._newest_split(records)
            if split is not None:
                self._keep_split(conn, split)
            for record in records:
                if record.topic == CREDITS_TOPIC:
                    self._keep_credit(conn, record)
            _move(conn, [record for record in records if record.topic == CREDITS_TOPIC])
        return split

    def positions(self) -> dict[tuple[str, int], int]:
        """Where reading credits goes on. Splits are read from the earliest: the topic is compacted."""
        with self._engine.connect() as conn:
            return read_positions(conn, _READER)

    def _newest_split(self, records: list[Record]) -> TrafficSplit | None:
        newest: TrafficSplit | None = None
        for record in records:
            if record.topic != TRAFFIC_SPLITS:
                continue
            try:
                split = TrafficSplit.from_bytes(record.value)
            except Unreadable as error:
                _log.error("unreadable split at %s-%d: %s", record.topic, record.partition, error)
                continue
            if split.agent == self._agent and (newest is None or split.generation > newest.generation):
                newest = split
        return newest

    def _keep_split(self, conn: Connection, split: TrafficSplit) -> None:
        known = conn.execute(select(SPLITS.c.generation).where(SPLITS.c.agent == self._agent)).scalar()
        if known is not None and known >= split.generation:
            return
        conn.execute(delete(SPLITS).where(SPLITS.c.agent == self._agent))
        row = {"agent": self._agent, "generation": split.generation, "value": split.to_bytes()}
        conn.execute(insert(SPLITS).values(**row))

    def _keep_credit(self, conn: Connection, record: Record) -> None:
        try:
            credit = Credit.from_bytes(record.value)
        except Unreadable as error:
            _log.error("unreadable credit at %s-%d: %s", record.topic, record.partition, error)
            return
        row = {"episode_id": credit.episode_id, "update_id": credit.update_id}
        where = (CREDITS.c.episode_id == credit.episode_id, CREDITS.c.update_id == credit.update_id)
        conn.execute(delete(CREDITS).where(*where))
        conn.execute(insert(CREDITS).values(**row, value=credit.to_bytes()))


class Listener:
    """A thread that follows both topics. A bus that is down is silence."""

    def __init__(self, news: News, bus: Bus, on_split: Callable[[TrafficSplit], None]) -> None:
        self._news, self._bus, self._on_split = news, bus, on_split
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
                self._follow()
            except (BusError, SQLAlchemyError, Zombie) as error:
                _log.warning("splits and credits are not read now: %s", error)
                self._stopping.wait(2.0)

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


def _move(conn: Connection, records: list[Record]) -> None:
    stored = read_positions(conn, _READER)
    moves: dict[tuple[str, int], tuple[int | None, int]] = {}
    for record in records:
        where = (record.topic, record.partition)
        if record.offset >= moves.get(where, (0, stored.get(where, 0)))[1]:
            moves[where] = (stored.get(where), record.offset + 1)
    advance(conn, _READER, moves)
