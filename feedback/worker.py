"""The feedback worker: read, join, price, pass on. What was read and what came of it are one SQL transaction.

Killed at any line it goes on where the last transaction ended: nothing is lost, and a repeat has the same bytes.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from feedback import ledger
from feedback.agent_file import AgentFile, AgentFileError
from feedback.bus import Bus, BusError, Partition, Record
from feedback.closing import Closed, Closer
from feedback.intake import Intake, take_in
from feedback.judging import REMEMBERED, Judging
from feedback.metric_section import longest_window
from feedback.monitor import Monitor
from feedback.outbox import Outbox
from feedback.schemas import EXPERIENCES, FEEDBACK, INTERACTIONS
from feedback.store import advance, read_positions, reading

_log = logging.getLogger(__name__)

READER = "join"
TOPICS = (INTERACTIONS, FEEDBACK)
_BATCH = 500
_FORGET = 500
_FORGET_EVERY_MS = 60_000


class Worker:
    """One per agent. `clock` gives milliseconds since the epoch: it only says how long an episode was silent."""

    def __init__(
        self,
        engine: Engine,
        bus: Bus,
        *,
        agent: AgentFile,
        outbox: Outbox,
        monitor: Monitor,
        clock: Callable[[], int],
        retention_ms: int = 14 * 86_400_000,
    ) -> None:
        ledger.create_ledger(engine)
        self._engine, self._reading = engine, reading(engine)
        self._bus, self._agent, self._outbox = bus, agent.agent, outbox
        self._monitor, self._clock = monitor, clock
        self._retention_ms, self._forget_at = _longer_than_windows(agent, retention_ms), 0
        with self._reading.connect() as conn:
            self._positions = read_positions(conn, READER)
            self._judging = Judging(agent.rewards.implicit, ledger.newest_pairs(conn, REMEMBERED))
        self._closer = Closer(agent, self._judging)
        self._reader = bus.reader(TOPICS)
        self._reader.seek(self._positions)
        self._waiting = outbox.depth()
        self._newest: dict[Partition, int] = {}
        self._lost: dict[Partition, int] = {}

    def run(self, stop: threading.Event, *, wait_s: float = 0.2) -> None:
        """Until told to stop. Anything unforeseen ends the process, which starts again from what is stored."""
        busy = False
        while not stop.is_set():
            busy = self.step(0.0 if busy else wait_s)
            if self._is_paused():
                stop.wait(wait_s)
        self.close()

    def step(self, wait_s: float = 0.0) -> bool:
        """One batch; whether there was anything to do."""
        busy = not self._is_paused() and self._work(wait_s)
        self._pass_on()
        self._judging.learn_when_due()
        self._forget_old()
        return busy

    def close(self) -> None:
        """Let go of the bus; everything else is stored."""
        self._reader.close()
        self._judging.close()

    def _is_paused(self) -> bool:
        """While the outbox is half full nothing is read, and so no silence is known: what is not read is safe on the bus."""
        return self._waiting > self._outbox.bound // 2

    def _work(self, wait_s: float) -> bool:
        records = self._reader.poll(wait_s, _BATCH)
        closed = self._commit(records, self._known_silence(records))
        return bool(records) or closed > 0

    def _commit(self, records: Sequence[Record], clock: int) -> int:
        """State, outgoing records and positions move together, or not at all; returns how many episodes were due."""
        if not records and not self._anything_due(clock):
            return 0
        moves = self._moves(records)
        with self._engine.begin() as conn:
            intake = take_in(conn, records, agent=self._agent, idle_ms=self._closer.join_rules.idle_ms)
            closed = self._closer.close_due(conn, clock)
            self._outbox.put_all(conn, [*intake.dead, *closed.outgoing])
            advance(conn, READER, moves)
        self._positions |= {where: new for where, (_, new) in moves.items()}
        self._judging.note(closed.pairs)
        self._judging.forget(closed.withdrawn)
        self._count(records, intake, closed)
        return closed.looked_at

    def _pass_on(self) -> None:
        """Empty the outbox. What a broken bus does not take stays there."""
        try:
            while self._outbox.drain(self._bus):
                pass
        except BusError as error:
            _log.warning("experiences wait in the outbox: %s", error)
        self._waiting = self._outbox.depth()
        self._monitor.outbox.set(self._waiting)
        if self._is_paused():
            self._reader.close()  # what it knew of the ends is old by the time reading goes on

    def _forget_old(self) -> None:
        """Once a minute, episodes that no rating can reach any more and that Kafka has forgotten as well."""
        now = self._clock()
        if now < self._forget_at:
            return
        with self._engine.begin() as conn:
            episodes, replies = ledger.forget(conn, before=now - self._retention_ms, limit=_FORGET)
        self._judging.forget(replies)
        self._forget_at = now if episodes == _FORGET else now + _FORGET_EVERY_MS

    def _anything_due(self, clock: int) -> bool:
        with self._reading.connect() as conn:
            return bool(ledger.due(conn, clock, limit=1))

    def _known_silence(self, records: Sequence[Record]) -> int:
        """Until when silence is known: now if everything was read, else the time the slowest partition has reached."""
        for record in records:
            where = (record.topic, record.partition)
            self._newest[where] = max(self._newest.get(where, 0), record.timestamp_ms)
        lag = self._reader.lag()
        self._monitor.saw_lag(lag)
        behind = [where for where, count in lag.items() if count and where[0] == INTERACTIONS]
        if lag and not behind:
            return self._clock()
        return min((self._newest.get(where, 0) for where in behind), default=0)

    def _moves(self, records: Sequence[Record]) -> dict[Partition, tuple[int | None, int]]:
        ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        return {where: (self._positions.get(where), end) for where, end in ends.items()}

    def _count(self, records: Sequence[Record], intake: Intake, closed: Closed) -> None:
        monitor = self._monitor
        for topic, count in Counter(record.topic for record in records).items():
            monitor.records.labels(topic=topic).inc(count)
        for topic, count in intake.dead_by_topic.items():
            _log.warning("%d records of %s could not be read: dead letters", count, topic)
            monitor.dead_letters.labels(topic=topic).inc(count)
        if closed.set_aside:
            _log.warning("%d episodes could not be priced: dead letters", closed.set_aside)
            monitor.dead_letters.labels(topic=EXPERIENCES).inc(closed.set_aside)
        for topic, count in intake.foreign_by_topic.items():
            monitor.foreign.labels(topic=topic).inc(count)
        for each in closed.experiences:
            outcome = "none" if each.outcome is None else str(each.outcome)
            monitor.episodes.labels(outcome=outcome).inc()
            monitor.experiences.labels(reason=each.reason or "trainable").inc()
        for where, total in self._reader.lost.items():
            monitor.lost.labels(topic=where[0]).inc(total - self._lost.get(where, 0))
        self._lost = dict(self._reader.lost)
        with self._reading.connect() as conn:
            monitor.unmatched.set(ledger.unmatched(conn))
        agreements, pairs = self._judging.agreement()
        monitor.pairs.set(pairs)
        monitor.agreement.set(agreements / pairs if pairs else 0.0)


def _longer_than_windows(agent: AgentFile, retention_ms: int) -> int:
    """Refuse to forget what may still be rated."""
    longest = longest_window(agent.metrics)
    if retention_ms <= longest:
        raise AgentFileError(
            f"metrics (comment, demonstration and comparison among them): a window of {longest / 1000:.0f} s needs a retention that is longer "
            f"(FEEDBACK_RETENTION_S is {retention_ms / 1000:.0f})"
        )
    return retention_ms
