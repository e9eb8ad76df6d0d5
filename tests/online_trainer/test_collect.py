"""What is taken from the bus, what is passed over, and what nobody could read."""

from __future__ import annotations

from pathlib import Path

from feedback.agent_file import AgentFile
from feedback.bus import MAX_VALUE_BYTES, BusError, MemoryBus, Record
from feedback.schemas import CREDITS, DEAD_LETTERS, EXPERIENCES, UPDATES, DeadLetter, Experience
from online_trainer.buffer import Buffer
from online_trainer.checkpoint import Lease
from online_trainer.collect import Collected, Readable, collect
from online_trainer.gather import gather
from online_trainer.lessons import Replay
from online_trainer.post import deliver
from online_trainer.state import Letter
from tests.online_trainer import tiny

READABLE = Readable(vocabulary=tiny.VOCABULARY, length=64)


def taken(value: bytes, buffer: Buffer, *, key: str = "ep_1") -> Collected:
    return collect(
        [Record(EXPERIENCES, 0, 0, key, value, 0)],
        agent="tiny-desk",
        buffer=buffer,
        replay=Replay(),
        positions={},
        readable=READABLE,
        now_ms=7,
    )


def larger_model(**changes: str) -> Experience:
    """Its ids are beyond what our model reads."""
    turn = tiny.priced([tiny.VOCABULARY + 5], [7], [-1.0])
    return tiny.experience(1, [turn], thumb=1).model_copy(update=changes)


def test_another_agents_experiences_are_passed_over_whatever_its_model_reads() -> None:
    buffer = Buffer()
    found = taken(larger_model(agent="other-desk").to_bytes(), buffer)
    assert (found.dead, found.experiences, buffer.waiting) == ([], 0, {})
    assert len(taken(larger_model().to_bytes(), buffer).dead) == 1


def test_a_poison_record_of_any_size_leaves_as_a_dead_letter() -> None:
    (letter,) = taken(b"{" * MAX_VALUE_BYTES, Buffer(), key="ep\0" * 1000).dead
    assert len(letter.value.encode()) <= MAX_VALUE_BYTES
    assert DeadLetter.from_bytes(letter.value.encode()).topic == EXPERIENCES
    bus = MemoryBus()
    assert deliver(bus, [letter]) == []
    assert len(bus.read(DEAD_LETTERS)) == 1


def letter(topic: str, value: str = "{}") -> Letter:
    return Letter(topic=topic, key="k", value=value, at=0)


class Forbidding(MemoryBus):
    """A broker that takes nothing for one topic."""

    forbidden = CREDITS

    def flush(self, timeout_s: float) -> None:
        pending = list(self._pending.get(self._thread(), []))
        if any(topic == self.forbidden for topic, *_ in pending):
            self._pending.pop(self._thread())
            raise BusError("not authorised")
        super().flush(timeout_s)

    def _thread(self) -> int:
        return next(iter(self._pending), 0)


def test_a_message_too_large_for_any_broker_mutes_no_other() -> None:
    bus = MemoryBus()
    large = letter(CREDITS, "x" * (MAX_VALUE_BYTES + 1))
    assert deliver(bus, [large, letter(UPDATES), letter(CREDITS)]) == []
    assert (len(bus.read(UPDATES)), len(bus.read(CREDITS))) == (1, 1)


def test_what_the_broker_refuses_waits_and_mutes_no_other() -> None:
    bus = Forbidding()
    refused = letter(CREDITS)
    assert deliver(bus, [refused, letter(UPDATES), letter(DEAD_LETTERS)]) == [refused]
    assert (len(bus.read(UPDATES)), len(bus.read(DEAD_LETTERS))) == (1, 1)


def test_what_an_absent_bus_did_not_take_waits_in_order() -> None:
    bus = MemoryBus()
    bus.down = True
    letters = [letter(UPDATES), letter(CREDITS)]
    assert deliver(bus, letters) == letters
    bus.down = False
    assert deliver(bus, letters) == []


def test_the_lag_of_a_topic_is_that_of_all_its_partitions(tmp_path: Path, agent: AgentFile) -> None:
    bus = MemoryBus()
    with Lease(tmp_path) as lease:
        trainer = tiny.open_tiny(tmp_path, agent, bus, lease=lease)
        for number in range(1101):
            bus.append(EXPERIENCES, f"ep_{number}", b"{}")
        gather(trainer, poll_s=0)
    behind = trainer.parts.monitor.registry.get_sample_value(
        "ratchet_train_consumer_lag_messages", {"topic": EXPERIENCES}
    )
    assert behind == 601
