"""What was committed is sent at least once and in order; what was rolled back never is; the spool has a bound."""

import time

import pytest
from sqlalchemy import Engine

from feedback.bus import MAX_VALUE_BYTES, BusError, MemoryBus, Oversized
from feedback.outbox import Drainer, Outbox, OutboxFull
from feedback.schemas import EXPERIENCES, FEEDBACK
from tests.stores import Stores


@pytest.fixture
def engine(stores: Stores) -> Engine:
    return stores.open()


def put(engine: Engine, outbox: Outbox, *values: bytes) -> None:
    with engine.begin() as conn:
        for value in values:
            outbox.put(conn, FEEDBACK, "key", value, 7)


def values(bus: MemoryBus, topic: str = FEEDBACK) -> list[bytes | None]:
    return [record.value for record in bus.read(topic)]


def test_rows_are_sent_in_order_with_their_time_and_then_gone(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=10)
    put(engine, outbox, b"1", b"2", b"3")
    assert outbox.depth() == 3
    assert outbox.drain(bus, batch=2) == 2
    assert outbox.drain(bus, batch=2) == 1
    assert outbox.drain(bus) == 0
    assert values(bus) == [b"1", b"2", b"3"]
    assert {record.timestamp_ms for record in bus.read(FEEDBACK)} == {7}
    assert outbox.depth() == 0


def test_a_rolled_back_transaction_sends_nothing(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=10)
    with pytest.raises(RuntimeError, match="boom"), engine.begin() as conn:
        outbox.put(conn, FEEDBACK, "key", b"1", 7)
        raise RuntimeError("boom")
    assert outbox.drain(bus) == 0
    assert values(bus) == []


def test_what_the_bus_did_not_take_stays_and_outlives_the_process(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=10)
    put(engine, outbox, b"1", b"2")
    bus.down = True
    with pytest.raises(BusError):
        outbox.drain(bus)
    assert outbox.depth() == 2
    bus.down = False
    assert Outbox(engine, bound=10).drain(bus) == 2
    assert values(bus) == [b"1", b"2"]


def test_a_crash_between_sending_and_forgetting_sends_again(engine: Engine) -> None:
    outbox = Outbox(engine, bound=10)
    put(engine, outbox, b"1")

    class Killed(MemoryBus):
        def flush(self, timeout_s: float) -> None:
            super().flush(timeout_s)
            raise KeyboardInterrupt

    bus = Killed()
    with pytest.raises(KeyboardInterrupt):
        outbox.drain(bus)
    calm = MemoryBus()
    assert Outbox(engine, bound=10).drain(calm) == 1
    assert values(bus) == values(calm) == [b"1"]


def test_the_spool_refuses_past_its_bound_and_accepts_again_after_a_drain(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=2)
    put(engine, outbox, b"1", b"2")
    with pytest.raises(OutboxFull, match="2 of 2"):
        put(engine, outbox, b"3")
    outbox.drain(bus)
    put(engine, outbox, b"4")
    outbox.drain(bus)
    assert values(bus) == [b"1", b"2", b"4"]


def test_an_oversized_value_never_enters(engine: Engine) -> None:
    outbox = Outbox(engine, bound=2)
    with pytest.raises(Oversized):
        put(engine, outbox, b"x" * (MAX_VALUE_BYTES + 1))
    assert outbox.depth() == 0


def test_topics_keep_their_own_rows(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=10)
    with engine.begin() as conn:
        outbox.put(conn, FEEDBACK, "a", b"f", 1)
        outbox.put(conn, EXPERIENCES, "a", b"e", 1)
    outbox.drain(bus)
    assert (values(bus, FEEDBACK), values(bus, EXPERIENCES)) == ([b"f"], [b"e"])


def test_the_drainer_waits_out_a_broken_bus_and_empties_the_outbox_at_stop(engine: Engine) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=100)
    drainer = Drainer(outbox, bus, interval_s=0.01)
    bus.down = True
    drainer.start()
    put(engine, outbox, b"1")
    drainer.wake()
    bus.down = False
    deadline = time.monotonic() + 10
    while outbox.depth():
        assert time.monotonic() < deadline
    put(engine, outbox, b"2")
    drainer.stop()
    assert values(bus) == [b"1", b"2"]


def test_the_drainer_outlives_a_database_that_was_away(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    bus, outbox = MemoryBus(), Outbox(engine, bound=100)
    put(engine, outbox, b"1")
    with engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE outbox RENAME TO away")
    drainer = Drainer(outbox, bus, interval_s=0.01)
    drainer.start()
    deadline = time.monotonic() + 10
    while "outbox waits" not in caplog.text:
        assert time.monotonic() < deadline
    with engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE away RENAME TO outbox")
    while not values(bus):
        assert time.monotonic() < deadline
    drainer.stop()
    assert values(bus) == [b"1"]
