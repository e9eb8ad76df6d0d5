"""The bus: topics of keyed records, read from positions that the reader keeps itself. `MemoryBus` is the double that ships.

There are no consumer groups anywhere: a reader is assigned every partition and seeks from its own durable positions,
so a record is done exactly when the state it produced is committed, and nothing is acknowledged behind anyone's back.
"""

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from feedback.schemas import TOPICS, TRAFFIC_SPLITS

AT_A_TIME = 500
"""Records of one look, where everything is read."""

MAX_VALUE_BYTES = 1_000_000
"""Largest value of a record, so that key and headers still fit the broker's default of 1 MiB."""

COMPACTED = frozenset({TRAFFIC_SPLITS})
"""Topics of which only the newest value of each key is kept."""

Partition = tuple[str, int]


class BusError(RuntimeError):
    """The bus did not take what it was given; nothing is known to be written unless `flush` returned."""


class Oversized(BusError):
    """A value over MAX_VALUE_BYTES: shrink it by a stated rule (`feedback/fit.py`) before it is sent."""


class TopicMismatch(BusError):
    """Topics exist with other settings than ours: waiting does not help."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as stored. `timestamp_ms` is the sender's; windows are measured with it."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    timestamp_ms: int


class Reader(Protocol):
    """Reads every partition of its topics, in order within each. Used by one thread."""

    lost: dict[Partition, int]
    """Records that retention removed before they were read, by partition."""

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Continue at these offsets; a partition not named starts at its earliest record."""

    def since(self, timestamp_ms: int) -> dict[Partition, int]:
        """Of each partition the first offset at or after a time, its end where there is none. Raises BusError."""

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        """Records that are there, waiting up to `timeout_s` for the first. An absent broker is silence."""

    def lag(self) -> dict[Partition, int]:
        """Records not yet read, by partition; empty while the ends are not known (so it never claims too little)."""

    def close(self) -> None:
        """Let go of connections and forget the ends; a later poll goes on where it was."""


class Bus(Protocol):
    """Sends records and makes readers."""

    def send(self, topic: str, key: str, value: bytes, *, timestamp_ms: int | None = None) -> None:
        """Buffer one record. Raises Oversized (what was buffered stays), or BusError, and what was sent is unknown."""

    def flush(self, timeout_s: float) -> None:
        """Return once everything this thread sent is acknowledged; else BusError, and what was sent is unknown."""

    def ensure_topics(self, partitions: int) -> None:
        """Create the topics of `feedback.schemas.TOPICS`; TopicMismatch when one exists with other settings."""

    def reader(self, topics: Sequence[str]) -> Reader:
        """A reader at the earliest records."""

    def close(self) -> None:
        """Let go of connections. What was not flushed is not promised."""


def read_to_the_end(reader: Reader, take: Callable[[Sequence[Record]], None], *, silence_s: float) -> None:
    """Hand over everything that is there. Raises BusError when for so long nothing is known of what is there."""
    heard = time.monotonic()
    while True:
        records = reader.poll(0.2, AT_A_TIME)
        if records:
            take(records)
            heard = time.monotonic()
        lag = reader.lag()
        if lag and not any(lag.values()):
            return
        if time.monotonic() - heard > silence_s:
            raise BusError(f"nothing was heard from the bus for {silence_s:.0f} s")


def check_size(topic: str, value: bytes) -> None:
    """Raise Oversized for a value that no broker would take."""
    if len(value) > MAX_VALUE_BYTES:
        raise Oversized(f"{topic}: value of {len(value)} bytes is over the limit of {MAX_VALUE_BYTES}")


@dataclass(slots=True)
class _Log:
    """One partition in memory; `start` is the offset of records[0]."""

    records: list[Record]
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class MemoryBus:
    """A bus inside one process: same promises, no network. `down` makes it refuse, as an absent broker does."""

    def __init__(self, *, partitions: int = 2) -> None:
        self.down = False
        self._partitions = partitions
        self._changed = threading.Condition()
        self._topics = {topic: self._new_topic() for topic in TOPICS}
        self._pending: defaultdict[int, list[tuple[str, str, bytes, int]]] = defaultdict(list)

    def send(self, topic: str, key: str, value: bytes, *, timestamp_ms: int | None = None) -> None:
        """Buffered until `flush`. Without a timestamp the record's is 0: tests say what time it is."""
        check_size(topic, value)
        with self._changed:
            if self.down:
                self._pending.pop(threading.get_ident(), None)
            self._refuse_when_down()
            self._pending[threading.get_ident()].append((topic, key, value, timestamp_ms or 0))

    def flush(self, timeout_s: float) -> None:
        """All of this thread's records become readable, or none."""
        with self._changed:
            pending = self._pending.pop(threading.get_ident(), [])
            self._refuse_when_down()
            for topic, key, value, timestamp_ms in pending:
                self._append(topic, key, value, timestamp_ms)
            self._changed.notify_all()

    def append(self, topic: str, key: str | None, value: bytes | None, *, timestamp_ms: int = 0) -> None:
        """Write at once what `send` would not: null values, keyless records, rubbish."""
        with self._changed:
            self._append(topic, key, value, timestamp_ms)
            self._changed.notify_all()

    def ensure_topics(self, partitions: int) -> None:
        """All topics exist from the start; only the count can be wrong."""
        with self._changed:
            self._refuse_when_down()
            if partitions != self._partitions:
                raise TopicMismatch(f"topics have {self._partitions} partitions, {partitions} are asked for")

    def add_partition(self) -> None:
        """Give every topic one more, as an operator may do to a running cluster."""
        with self._changed:
            self._partitions += 1
            for logs in self._topics.values():
                logs.append(_Log([]))

    def expire(self, topic: str, partition: int, *, before: int) -> None:
        """Remove the records below an offset, as retention does."""
        with self._changed:
            log = self._topics[topic][partition]
            keep = max(0, before - log.start)
            log.records, log.start = log.records[keep:], log.start + min(keep, len(log.records))

    def reader(self, topics: Sequence[str]) -> "MemoryReader":
        """A reader at the earliest records."""
        return MemoryReader(self, topics)

    def close(self) -> None:
        """Nothing to let go of."""

    def read(self, topic: str) -> list[Record]:
        """Everything still kept in a topic, for assertions."""
        with self._changed:
            return [record for log in self._topics[topic] for record in log.records]

    def take(
        self, positions: dict[Partition, int], topics: Sequence[str], limit: int
    ) -> tuple[list[Record], dict[Partition, int]]:
        """The next records after `positions` (moved on in place) and how many before them were lost."""
        found: list[Record] = []
        lost: dict[Partition, int] = {}
        with self._changed:
            for name, number, log in self._logs(topics):
                at = positions.get((name, number), log.start)
                if at < log.start:
                    lost[name, number] = log.start - at
                    at = log.start
                batch = log.records[at - log.start :][: limit - len(found)] if at <= log.end else []
                found += batch
                positions[name, number] = at + len(batch)
        return found, lost

    def wait(self, timeout_s: float) -> None:
        """Until something is written, or the time is up."""
        with self._changed:
            self._changed.wait(timeout_s)

    def ends(self, topics: Sequence[str]) -> dict[Partition, int]:
        """The offset after the newest record of each partition."""
        with self._changed:
            return {(name, number): log.end for name, number, log in self._logs(topics)}

    def since(self, topics: Sequence[str], timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of each partition at or after a time."""
        with self._changed:
            self._refuse_when_down()
            return {
                (name, number): next(
                    (r.offset for r in log.records if r.timestamp_ms >= timestamp_ms), log.end
                )
                for name, number, log in self._logs(topics)
            }

    def _logs(self, topics: Sequence[str]) -> list[tuple[str, int, _Log]]:
        return [(name, number, log) for name in topics for number, log in enumerate(self._topics[name])]

    def _new_topic(self) -> list[_Log]:
        return [_Log([]) for _ in range(self._partitions)]

    def _append(self, topic: str, key: str | None, value: bytes | None, timestamp_ms: int) -> None:
        logs = self._topics[topic]
        number = zlib.crc32((key or "").encode()) % len(logs)
        log = logs[number]
        log.records.append(Record(topic, number, log.end, key, value, timestamp_ms))

    def _refuse_when_down(self) -> None:
        if self.down:
            raise BusError("the bus is down")


class MemoryReader:
    """Reads a MemoryBus from positions of its own."""

    def __init__(self, bus: MemoryBus, topics: Sequence[str]) -> None:
        self.lost: dict[Partition, int] = {}
        self._bus = bus
        self._topics = tuple(topics)
        self._positions: dict[Partition, int] = {}

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Continue at these offsets; others start at the earliest."""
        self._positions = dict(positions)

    def since(self, timestamp_ms: int) -> dict[Partition, int]:
        """Offsets of the first records at or after a time."""
        return self._bus.since(self._topics, timestamp_ms)

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        """What is there; waits for the first record up to `timeout_s`."""
        records = self._take(max_records)
        if not records and timeout_s > 0:
            self._bus.wait(timeout_s)
            records = self._take(max_records)
        return records

    def lag(self) -> dict[Partition, int]:
        """Records not yet read."""
        return {
            where: end - self._positions.get(where, 0) for where, end in self._bus.ends(self._topics).items()
        }

    def close(self) -> None:
        """Nothing to let go of."""

    def _take(self, limit: int) -> list[Record]:
        if self._bus.down:
            return []
        records, lost = self._bus.take(self._positions, self._topics, limit)
        for where, count in lost.items():
            self.lost[where] = self.lost.get(where, 0) + count
        return records
