"""Reads every partition of some topics of Apache Kafka, from positions that only its owner moves.

It belongs to no group and never commits an offset; a broker that is away is silence, and what retention took is counted.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from feedback.bus import BusError, Partition, Record

_log = logging.getLogger(__name__)

BLOCK_MS = 10_000
"""Longest wait for an answer of the broker."""
DISCOVER_S = 5.0
"""How often to look for partitions that an operator added."""


class KafkaReader:
    """Assigned to every partition of its topics, at positions that only its owner moves."""

    def __init__(
        self, open_consumer: Callable[[], Any], probe: Callable[[], None], topics: Sequence[str]
    ) -> None:
        self.lost: dict[Partition, int] = {}
        self._open_consumer = open_consumer
        self._probe = probe
        self._topics = tuple(topics)
        self._consumer: Any = None
        self._wanted: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._discover_at = 0.0

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Continue at these offsets. Takes effect at the next poll, connected or not."""
        self._wanted = dict(positions)
        self._positions = {}
        self._discover_at = 0.0

    def since(self, timestamp_ms: int) -> dict[Partition, int]:
        """Offsets of the first records at or after a time, by Kafka's own index of times."""
        try:
            self._assign_when_due()
            parts = [TopicPartition(*where) for where in self._positions]
            wanted = dict.fromkeys(parts, timestamp_ms)
            found = self._consumer.offsets_for_times(wanted, timeout_ms=BLOCK_MS)
            ends = self._consumer.end_offsets(parts, timeout_ms=BLOCK_MS)
        except KafkaError as error:
            self._drop_consumer()
            raise BusError(f"offsets by time: {error}") from error
        first = {part: ends[part] if found.get(part) is None else found[part].offset for part in parts}
        return {(part.topic, part.partition): offset for part, offset in first.items()}

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        """Records of all partitions. No broker, or a broker that fails, is silence until it is back."""
        try:
            self._assign_when_due()
            if not self._positions:
                time.sleep(min(timeout_s, 0.1))
                return []
            fetched = self._fetch(timeout_s, max_records)
        except (BusError, KafkaError) as error:
            _log.warning("reading %s: %s", ",".join(self._topics), error)
            self._drop_consumer()
            time.sleep(min(timeout_s, 1.0))
            return []
        return [self._record(record) for batch in fetched.values() for record in batch]

    def lag(self) -> dict[Partition, int]:
        """From the ends that came with the last fetches; empty until all are known, and while disconnected."""
        if self._consumer is None:
            return {}
        ends = {where: self._consumer.highwater(TopicPartition(*where)) for where in self._positions}
        if None in ends.values():
            return {}
        return {where: end - self._positions[where] for where, end in ends.items()}

    def close(self) -> None:
        """Let go of the connection."""
        self._drop_consumer()

    def _fetch(self, timeout_s: float, max_records: int) -> Mapping[Any, Sequence[Any]]:
        try:
            found: Mapping[Any, Sequence[Any]] = self._consumer.poll(
                timeout_ms=int(timeout_s * 1000), max_records=max_records
            )
            return found
        except OffsetOutOfRangeError as error:
            self._step_over_loss(error)
            return {}

    def _record(self, raw: Any) -> Record:
        self._positions[raw.topic, raw.partition] = raw.offset + 1
        key = None if raw.key is None else raw.key.decode(errors="replace")
        return Record(raw.topic, raw.partition, raw.offset, key, raw.value, raw.timestamp)

    def _assign_when_due(self) -> None:
        """Connect, find the partitions (an operator may add some) and seek those that are new.

        The client reconnects in silence; the probe makes a broker that is gone known, and with it the lag unknown.
        """
        if time.monotonic() < self._discover_at:
            return
        self._probe()
        if self._consumer is None:
            self._consumer = self._open_consumer()
        known = [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in self._consumer.partitions_for_topic(topic)
        ]
        fresh = [part for part in known if (part.topic, part.partition) not in self._positions]
        if fresh:
            self._consumer.assign(known)
            earliest = self._consumer.beginning_offsets(fresh, timeout_ms=BLOCK_MS)
            for part in fresh:
                where = (part.topic, part.partition)
                self._move(where, self._wanted.get(where, earliest[part]))
        self._discover_at = time.monotonic() + (DISCOVER_S if known else 0.5)

    def _step_over_loss(self, error: OffsetOutOfRangeError) -> None:
        """Retention removed what was next, or the topic was made anew: go on at the earliest, and say so."""
        parts = list(error.args[0])
        for part, earliest in self._consumer.beginning_offsets(parts, timeout_ms=BLOCK_MS).items():
            where = (part.topic, part.partition)
            missing = max(0, earliest - self._positions[where])
            self.lost[where] = self.lost.get(where, 0) + missing
            _log.error("lost %d records of %s-%d before offset %d", missing, *where, earliest)
            self._move(where, earliest)

    def _move(self, where: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(*where), offset)
        self._positions[where] = offset

    def _drop_consumer(self) -> None:
        """Remember how far we were; the next poll connects again there."""
        self._wanted |= self._positions
        self._positions = {}
        self._discover_at = 0.0
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaError):
                consumer.close(autocommit=False, timeout_ms=1_000)
