"""What Kafka's client may raise in the middle of its work ends nobody: reading is silent, and a send is never counted twice."""

from collections.abc import Mapping
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError
from kafka.future import Future

from feedback.bus import BusError
from feedback.kafka import KafkaBus
from feedback.kafka_reader import KafkaReader
from feedback.schemas import FEEDBACK

PART = TopicPartition(FEEDBACK, 0)


class Consumer:
    """Answers once from retention's edge, where asking for the earliest offset may fail as well."""

    def __init__(self, *faults: str) -> None:
        self.faults = list(faults)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def assign(self, parts: list[TopicPartition]) -> None: ...

    def seek(self, part: TopicPartition, offset: int) -> None: ...

    def beginning_offsets(self, parts: list[TopicPartition], timeout_ms: int) -> Mapping[Any, int]:
        self._fail("earliest")
        return dict.fromkeys(parts, 5)

    def poll(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        if "range" in self.faults:
            self.faults.remove("range")
            raise OffsetOutOfRangeError({PART: 2})
        return {}

    def highwater(self, part: TopicPartition) -> int:
        return 5

    def close(self, **options: Any) -> None:
        self._fail("close")

    def _fail(self, what: str) -> None:
        if what in self.faults:
            self.faults.remove(what)
            raise KafkaTimeoutError(what)


def reader_of(*consumers: Consumer) -> KafkaReader:
    waiting = iter(consumers)
    reader = KafkaReader(lambda: next(waiting), lambda: None, [FEEDBACK])
    reader.seek({(FEEDBACK, 0): 2})
    return reader


def test_retention_that_passed_the_position_is_counted() -> None:
    reader = reader_of(Consumer("range"))
    assert reader.poll(0.0) == []
    assert reader.lost == {(FEEDBACK, 0): 3}


def test_a_broker_that_leaves_while_a_loss_is_measured_is_silence_and_the_loss_is_counted_later() -> None:
    class Leaving(Consumer):
        """Knows its partitions, and not where they begin."""

        def poll(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
            self.faults.append("earliest")
            raise OffsetOutOfRangeError({PART: 2})

    reader = reader_of(Leaving(), Consumer("range"))
    assert reader.poll(0.0) == []
    assert (reader.lost, reader.lag()) == ({}, {})
    assert reader.poll(0.0) == []
    assert reader.lost == {(FEEDBACK, 0): 3}


def test_a_client_that_cannot_even_be_closed_is_let_go() -> None:
    class Gone(Consumer):
        def poll(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
            raise KafkaTimeoutError("no answer")

    reader = reader_of(Gone("close"), Consumer())
    assert reader.poll(0.0) == []
    assert reader.poll(0.0) == []
    assert reader.lag() == {(FEEDBACK, 0): 3}


class Producer:
    """Acknowledges at once, unless it is told to refuse."""

    def __init__(self) -> None:
        self.refuses = False
        self.taken: list[bytes] = []
        self._sender = self

    def send(self, topic: str, *, value: bytes, key: bytes, timestamp_ms: int | None) -> Any:
        if self.refuses:
            raise KafkaTimeoutError("no room")
        self.taken.append(value)
        return Future()

    def flush(self, timeout: float) -> None: ...

    def force_close(self) -> None: ...

    def join(self, timeout: float) -> None: ...

    def close(self, timeout: float) -> None: ...


class Acknowledging(Producer):
    def send(self, topic: str, *, value: bytes, key: bytes, timestamp_ms: int | None) -> Any:
        return super().send(topic, value=value, key=key, timestamp_ms=timestamp_ms).success(None)


def test_what_was_buffered_before_a_send_failed_does_not_fail_the_next_flush() -> None:
    bus, broken, well = KafkaBus("127.0.0.1:1", "test"), Producer(), Acknowledging()
    bus._producer = broken
    bus.send(FEEDBACK, "k", b"1")
    broken.refuses = True
    with pytest.raises(BusError, match="no room"):
        bus.send(FEEDBACK, "k", b"2")
    bus._producer = well
    for value in (b"1", b"2"):
        bus.send(FEEDBACK, "k", value)
    bus.flush(1.0)
    assert well.taken == [b"1", b"2"]


def test_a_broker_that_cannot_be_reached_drops_what_was_buffered_for_it() -> None:
    bus, well = KafkaBus("127.0.0.1:1", "test"), Acknowledging()
    bus._producer = Producer()
    bus.send(FEEDBACK, "k", b"1")
    bus._producer = None
    with pytest.raises(BusError, match="no Kafka"):
        bus.send(FEEDBACK, "k", b"2")
    bus._producer = well
    bus.send(FEEDBACK, "k", b"1")
    bus.flush(1.0)
    assert well.taken == [b"1"]
