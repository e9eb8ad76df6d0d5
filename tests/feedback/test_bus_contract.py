"""One contract for every bus: what is flushed is read, in order, once for each position, and loss is never silent."""

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from feedback.bus import MAX_VALUE_BYTES, Bus, BusError, MemoryBus, Oversized, Reader, Record, TopicMismatch
from feedback.kafka import KafkaBus
from feedback.schemas import FEEDBACK, INTERACTIONS
from tests.feedback.broker import PARTITIONS, Broker, free_port

# kafka-python leaves the sockets of refused connections to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

DEADLINE_S = 20.0


@dataclass
class Rig:
    """A bus under test, and the operator's hand on its retention."""

    bus: Bus
    expire: Callable[[str, int, int], None]
    readers: list[Reader] = field(default_factory=list)

    def reader(self, *topics: str) -> Reader:
        self.readers.append(self.bus.reader(topics))
        return self.readers[-1]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.bus.close()


def kafka_expire(bootstrap: str) -> Callable[[str, int, int], None]:
    from kafka import KafkaAdminClient, TopicPartition

    def expire(topic: str, partition: int, before: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.delete_records({TopicPartition(topic, partition): before})
        admin.close()

    return expire


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.end_to_end)])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "memory":
        memory = MemoryBus(partitions=PARTITIONS)
        made = Rig(memory, lambda topic, part, before: memory.expire(topic, part, before=before))
    else:
        broker: Broker = request.getfixturevalue("kafka_broker")
        made = Rig(broker.bus(), kafka_expire(broker.bootstrap))
    yield made
    made.close()


def read_until(reader: Reader, enough: Callable[[list[Record]], bool]) -> list[Record]:
    """Poll until the records read so far are enough; fails at the deadline."""
    records: list[Record] = []
    deadline = time.monotonic() + DEADLINE_S
    while not enough(records):
        assert time.monotonic() < deadline, f"only {len(records)} records came"
        records += reader.poll(0.2)
    return records


def read_keys(reader: Reader, prefix: str, count: int) -> list[Record]:
    """The records of one test, which share a key prefix: a topic may hold those of others."""

    def ours(records: list[Record]) -> list[Record]:
        return [record for record in records if (record.key or "").startswith(prefix)]

    return ours(read_until(reader, lambda records: len(ours(records)) >= count))


def read_to_the_end(reader: Reader) -> None:
    """Until nothing comes for a while after the first answer."""
    deadline = time.monotonic() + DEADLINE_S
    while reader.poll(0.5):
        assert time.monotonic() < deadline


def send_all(bus: Bus, topic: str, prefix: str, count: int) -> None:
    for number in range(count):
        bus.send(topic, f"{prefix}-{number % 3}", f"{number}".encode(), timestamp_ms=1_000 + number)
    bus.flush(10)


def unique() -> str:
    return uuid.uuid4().hex


def test_what_was_flushed_is_read_in_order_by_a_reader_that_came_later(rig: Rig) -> None:
    mine = unique()
    send_all(rig.bus, FEEDBACK, mine, 9)
    records = read_keys(rig.reader(FEEDBACK), mine, 9)
    assert sorted(int(record.value or b"") for record in records) == list(range(9))
    for key in {record.key for record in records}:
        values = [int(record.value or b"") for record in records if record.key == key]
        assert values == sorted(values)
    assert {record.timestamp_ms for record in records} == set(range(1_000, 1_009))


def test_nothing_is_readable_before_it_is_flushed_and_all_of_it_after(rig: Rig) -> None:
    mine = unique()
    reader = rig.reader(FEEDBACK)
    rig.bus.send(FEEDBACK, mine, b"x")
    rig.bus.flush(10)
    assert len(read_keys(reader, mine, 1)) == 1


def test_a_key_has_the_same_partition_in_every_topic(rig: Rig) -> None:
    mine = unique()
    for number in range(8):
        for topic in (FEEDBACK, INTERACTIONS):
            rig.bus.send(topic, f"{mine}-{number}", b"x")
    rig.bus.flush(10)
    records = read_keys(rig.reader(FEEDBACK, INTERACTIONS), mine, 16)
    for key in {record.key for record in records}:
        assert len({record.partition for record in records if record.key == key}) == 1
    assert {record.partition for record in records} == {0, 1}


def test_a_reader_goes_on_from_given_positions_and_repeats_nothing(rig: Rig) -> None:
    mine = unique()
    send_all(rig.bus, FEEDBACK, mine, 12)
    first = read_keys(rig.reader(FEEDBACK), mine, 12)
    half = {(record.topic, record.partition): record.offset + 1 for record in first[:6]}
    positions = {(FEEDBACK, part): half.get((FEEDBACK, part), 0) for part in range(PARTITIONS)}
    second = rig.reader(FEEDBACK)
    second.seek(positions)
    rest = read_keys(second, mine, 6)
    expected = [record for record in first if record.offset >= positions[record.topic, record.partition]]
    assert sorted(record.value or b"" for record in rest) == sorted(
        record.value or b"" for record in expected
    )


def test_a_time_is_found_as_the_first_record_at_or_after_it(rig: Rig) -> None:
    mine, future = unique(), time.time_ns() // 1_000_000 + 600_000
    for number in range(3):
        rig.bus.send(FEEDBACK, mine, f"{number}".encode(), timestamp_ms=future + 10 * number)
    rig.bus.flush(10)
    first, *_ = read_keys(rig.reader(FEEDBACK), mine, 3)
    where = (FEEDBACK, first.partition)
    reader = rig.reader(FEEDBACK)
    found = [reader.since(future + late)[where] - first.offset for late in (0, 1, 10, 20, 21)]
    assert found == [0, 1, 1, 2, 3]


def test_poll_returns_at_most_what_was_asked_for(rig: Rig) -> None:
    mine = unique()
    send_all(rig.bus, FEEDBACK, mine, 10)
    reader = rig.reader(FEEDBACK)
    sizes: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while sum(sizes) < 10 and time.monotonic() < deadline:
        sizes.append(len(reader.poll(0.2, max_records=4)))
    assert sum(sizes) >= 10
    assert max(sizes) <= 4


def test_lag_is_what_has_not_been_read(rig: Rig) -> None:
    mine = unique()
    send_all(rig.bus, FEEDBACK, mine, 6)
    reader = rig.reader(FEEDBACK)
    assert sum(reader.lag().values()) >= 0
    read_keys(reader, mine, 6)
    read_to_the_end(reader)
    assert sum(reader.lag().values()) == 0


def test_an_idle_poll_is_empty(rig: Rig) -> None:
    reader = rig.reader(FEEDBACK)
    read_to_the_end(reader)
    assert reader.poll(0.1) == []


@pytest.mark.parametrize("size", [990_000, MAX_VALUE_BYTES])
def test_values_up_to_the_limit_arrive_whole(rig: Rig, size: int) -> None:
    mine = unique()
    rig.bus.send(FEEDBACK, mine, b"x" * size)
    rig.bus.flush(10)
    assert [len(record.value or b"") for record in read_keys(rig.reader(FEEDBACK), mine, 1)] == [size]


@pytest.mark.parametrize("size", [MAX_VALUE_BYTES + 1, 5_000_000])
def test_an_oversized_value_is_refused_aloud_and_its_neighbours_arrive(rig: Rig, size: int) -> None:
    mine = unique()
    rig.bus.send(FEEDBACK, f"{mine}-1", b"before")
    with pytest.raises(Oversized, match=str(size)):
        rig.bus.send(FEEDBACK, f"{mine}-2", b"x" * size)
    rig.bus.send(FEEDBACK, f"{mine}-3", b"after")
    rig.bus.flush(10)
    assert {record.value for record in read_keys(rig.reader(FEEDBACK), mine, 2)} == {b"before", b"after"}


def test_a_range_that_retention_removed_is_counted_as_lost(rig: Rig) -> None:
    mine = unique()
    rig.bus.send(FEEDBACK, mine, b"0")
    rig.bus.flush(10)
    first = read_keys(rig.reader(FEEDBACK), mine, 1)[0]
    where = (first.topic, first.partition)
    for number in range(1, 6):
        rig.bus.send(FEEDBACK, mine, f"{number}".encode())
    rig.bus.flush(10)
    rig.expire(*where, first.offset + 4)
    reader = rig.reader(FEEDBACK)
    reader.seek({where: first.offset + 1})
    assert [record.value for record in read_keys(reader, mine, 2)] == [b"4", b"5"]
    assert reader.lost[where] == 3


def test_topics_with_another_partition_count_are_refused(rig: Rig) -> None:
    rig.bus.ensure_topics(PARTITIONS)
    with pytest.raises(TopicMismatch, match="partitions"):
        rig.bus.ensure_topics(PARTITIONS + 1)


def test_memory_bus_refuses_while_down_and_loses_nothing_that_is_sent_again() -> None:
    bus = MemoryBus()
    bus.send(FEEDBACK, "k", b"1")
    bus.down = True
    with pytest.raises(BusError):
        bus.send(FEEDBACK, "k", b"2")
    reader = bus.reader([FEEDBACK])
    assert reader.poll(0) == []
    bus.down = False
    bus.send(FEEDBACK, "k", b"1")
    bus.flush(1)
    assert [record.value for record in reader.poll(0)] == [b"1"]


def test_a_partition_added_while_running_is_read_too() -> None:
    bus = MemoryBus(partitions=1)
    reader = bus.reader([FEEDBACK])
    bus.append(FEEDBACK, "a", b"1")
    assert len(reader.poll(0)) == 1
    bus.add_partition()
    for number in range(8):
        bus.append(FEEDBACK, f"k{number}", b"2")
    assert len({record.partition for record in reader.poll(0)}) == 2


def test_a_bus_without_a_broker_is_built_and_says_so_when_used() -> None:
    bus = KafkaBus(f"127.0.0.1:{free_port()}", "nobody")
    with pytest.raises(BusError, match="no Kafka"):
        bus.send(FEEDBACK, "k", b"x")
    with pytest.raises(BusError, match="no Kafka"):
        bus.ensure_topics(PARTITIONS)
    assert bus.reader([FEEDBACK]).poll(0.05) == []
    bus.close()


@pytest.mark.end_to_end
def test_a_killed_broker_loses_nothing_acknowledged_and_both_ends_come_back(kafka_broker: Broker) -> None:
    mine, rig = unique(), Rig(kafka_broker.bus(), kafka_expire(kafka_broker.bootstrap))
    reader = rig.reader(FEEDBACK)
    send_all(rig.bus, FEEDBACK, mine, 6)
    read_keys(reader, mine, 6)
    kafka_broker.stop(signal.SIGKILL)
    with pytest.raises(BusError):
        rig.bus.send(FEEDBACK, f"{mine}-7", b"7")
        rig.bus.flush(2)
    assert reader.poll(0.1) == []
    kafka_broker.start()
    kafka_broker.wait_until_ready()
    rig.bus.send(FEEDBACK, f"{mine}-8", b"8")
    rig.bus.flush(20)
    after = {record.value for record in read_keys(reader, mine, 1)}
    assert after <= {b"7", b"8"}, "nothing read before is read again"
    everything = {record.value for record in read_keys(rig.reader(FEEDBACK), mine, 7)}
    assert everything >= {b"0", b"1", b"2", b"3", b"4", b"5", b"8"}
    rig.close()
