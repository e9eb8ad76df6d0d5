"""The stream's published figures: how fast the join is, how soon a rating is an experience, what a large state costs.

Every figure is taken from the worker that runs in production, on records as serving writes them; only the clock is ours.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sqlalchemy import Engine

from deploy.bench.bare_loop import bare_rate
from feedback import ledger
from feedback.agent_file import AgentFile
from feedback.bus import Bus, MemoryBus, Reader, read_to_the_end
from feedback.kafka import KafkaBus
from feedback.ledger import Kept, Standing
from feedback.monitor import Monitor
from feedback.outbox import Drainer, Outbox
from feedback.schemas import (
    CREDITS,
    EXPERIENCES,
    FEEDBACK,
    INTERACTIONS,
    Experience,
    Feedback,
    Interaction,
    Turn,
)
from feedback.store import open_database
from feedback.worker import Worker

_WITHIN_S = 600.0
_FILL = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much is measured. `episodes` have two replies and a rating each; `small` and `large` are ids in the state."""

    episodes: int = 5_000
    ratings: int = 100
    probe: int = 500
    small: int = 10_000
    large: int = 10_000_000


@dataclass(frozen=True)
class Sent:
    """One record on its way to a bus."""

    topic: str
    key: str
    value: bytes
    at: int


def measure(
    bootstrap: str, agent: AgentFile, *, partitions: int, home: Path, sizes: Sizes
) -> Iterator[tuple[str, float]]:
    """Figures by their published keys, one after the other. The broker must be empty."""
    bus = KafkaBus(bootstrap, "bench")
    bus.ensure_topics(partitions)
    now = _now()
    records = conversations(agent, range(sizes.episodes), now=now)
    send_all(bus, records)
    engine = open_database("feedback", home=home / "join")
    subject = Subject(engine, bus, agent)
    joined = join_rate(subject, records=len(records))
    yield "stream.join_rate.records_per_s", joined
    bare = bare_rate(
        bootstrap,
        (INTERACTIONS, FEEDBACK),
        CREDITS,
        partitions=partitions,
        records=len(records),
        within_s=_WITHIN_S,
    )
    yield "stream.join_rate.bare_records_per_s", bare
    yield "stream.join_rate.ratio", joined / bare
    delays = end_to_end_ms(subject.worker, bus, agent, episodes=range(sizes.ratings), home=home)
    yield "stream.end_to_end_ms.p50", median(delays)
    bus.close()
    engine.dispose()
    small, large = (
        cost_per_record(agent, home=home / f"state{ids}", ids=ids, probe=sizes.probe)
        for ids in (sizes.small, sizes.large)
    )
    yield "stream.cost_us.small", 1e6 * small
    yield "stream.cost_us.large", 1e6 * large
    yield "stream.cost_10m_over_10k", large / small


class Subject:
    """The production worker, and how many records it has read."""

    def __init__(self, engine: Engine, bus: Bus, agent: AgentFile) -> None:
        self._monitor = Monitor()
        self.worker = Worker(
            engine, bus, agent=agent, outbox=Outbox(engine, 1_000_000), monitor=self._monitor, clock=_now
        )

    @property
    def records(self) -> int:
        value, registry = 0.0, self._monitor.registry
        for topic in (INTERACTIONS, FEEDBACK):
            value += registry.get_sample_value("ratchet_bus_records_total", {"topic": topic}) or 0.0
        return round(value)


def join_rate(subject: Subject, *, records: int) -> float:
    """Records a second, from the first poll until every experience is acknowledged."""
    began, busy = time.monotonic(), True
    while busy or subject.records < records:
        if time.monotonic() - began > _WITHIN_S:
            raise TimeoutError(f"{subject.records} of {records} records were joined in {_WITHIN_S:.0f} s")
        busy = subject.worker.step(0.2 if subject.records < records else 0.0)
    return records / (time.monotonic() - began)


def end_to_end_ms(
    worker: Worker, bus: Bus, agent: AgentFile, *, episodes: Sequence[int], home: Path
) -> list[float]:
    """From the commit that a 202 answers to the new experience read: for ratings of episodes that closed long before."""
    serving = open_database("serving", home=home / "serving")
    outbox, stop = Outbox(serving, 10_000), threading.Event()
    drainer, reader = Drainer(outbox, bus), bus.reader([EXPERIENCES])
    read_to_the_end(reader, lambda records: None, silence_s=60.0)
    working = threading.Thread(target=worker.run, args=(stop,))
    working.start()
    drainer.start()
    try:
        delays = []
        for number in episodes:
            thumb = _thumb(agent, number, name="again", at=_now())
            began = time.monotonic()
            with serving.begin() as conn:
                outbox.put(conn, FEEDBACK, thumb.episode_id, thumb.to_bytes(), thumb.received_at)
            drainer.wake()
            _await(reader, thumb.episode_id)
            delays.append(1000 * (time.monotonic() - began))
        return delays
    finally:
        stop.set()
        working.join()
        drainer.stop()
        reader.close()
        serving.dispose()


def cost_per_record(agent: AgentFile, *, home: Path, ids: int, probe: int) -> float:
    """Seconds a record of `probe` new episodes, with so many record ids in the join's state already."""
    engine, bus = open_database("feedback", home=home), MemoryBus()
    subject = Subject(engine, bus, agent)
    fill(engine, ids=ids, now=_now())
    records = conversations(agent, range(probe), now=_now())
    send_all(bus, records)
    took = 1.0 / join_rate(subject, records=len(records))
    subject.worker.close()
    engine.dispose()
    return took


def fill(engine: Engine, *, ids: int, now: int) -> None:
    """Settled episodes of two records each, spread over the last week; their ids grow with time, as ours do."""
    week = 7 * 86_400_000
    for start in range(0, ids // 2, _FILL):
        numbers = range(start, min(start + _FILL, ids // 2))
        old = {number: now - week + number * week * 2 // ids for number in numbers}
        kept = [
            Kept(f"ep_{at:013d}{number:09d}", f"i/chatcmpl-{at:013d}{number:09d}{reply}", at, b"{}")
            for number, at in old.items()
            for reply in (0, 1)
        ]
        standings = [
            Standing(each.episode_id, last_at=each.at, closed=True, revision=1) for each in kept[::2]
        ]
        with engine.begin() as conn:
            ledger.keep(conn, kept)
            ledger.stand(conn, standings)


def send_all(bus: Bus, records: Sequence[Sent]) -> None:
    """Everything, acknowledged."""
    for start in range(0, len(records), 1_000):
        for record in records[start : start + 1_000]:
            bus.send(record.topic, record.key, record.value, timestamp_ms=record.at)
        bus.flush(60)


def conversations(agent: AgentFile, numbers: Sequence[int], *, now: int) -> list[Sent]:
    """Episodes that have been silent long enough to be closed, with a rating each."""
    ended = now - round(agent.episode.idle * 1000) - 10_000
    found = []
    for number in numbers:
        name = _episode(number)
        for index in (0, 1):
            reply = _reply(agent, number, index, at=ended + index)
            found.append(Sent(INTERACTIONS, name, reply.to_bytes(), ended + index))
        thumb = _thumb(agent, number, name="first", at=ended + 5)
        found.append(Sent(FEEDBACK, name, thumb.to_bytes(), ended + 5))
    return found


def _reply(agent: AgentFile, number: int, index: int, *, at: int) -> Interaction:
    text = "Flight 24 Delta, hotel 28 Hill. Total 136."
    turn = Turn(
        adapter_version=agent.base_version,
        prompt_ids=tuple(range(150)),
        token_ids=tuple(range(40)),
        logprobs=(-0.25,) * 40,
        raw_text=text,
        shown_text=text,
        stop_reason="stop",
    )
    return Interaction.model_validate(
        {
            "agent": agent.agent,
            "episode_id": _episode(number),
            "response_id": _response(number, index),
            "index": index,
            "key_owner": "bench",
            "user": f"user-{number % 100}",
            "arm": "champion",
            "propensity": 1.0,
            "generation": 1,
            "adapter_version": agent.base_version,
            "turns": (turn,),
            "user_text": "Lima for 4 nights, please.",
            "status": "completed",
            "started_at": at - 1_000,
            "ended_at": at,
        }
    )


def _thumb(agent: AgentFile, number: int, *, name: str, at: int) -> Feedback:
    return Feedback.model_validate(
        {
            "id": f"fb_{number}_{name}",
            "revision": 1,
            "op": "create",
            "agent": agent.agent,
            "episode_id": _episode(number),
            "response_id": _response(number, 1),
            "name": next(iter(agent.metrics)),
            "value": number % 2 == 0,
            "score": float(number % 2 == 0),
            "key_owner": "bench",
            "rater": f"rater-{name}-{number}",
            "given_at": at,
            "received_at": at,
        }
    )


def _await(reader: Reader, episode_id: str) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        for record in reader.poll(0.05):
            if record.key == episode_id and Experience.from_bytes(record.value).ratings == 2:
                return
    raise TimeoutError(f"no experience of {episode_id} came in 60 s")


def _episode(number: int) -> str:
    return f"ep_bench{number:09d}"


def _response(number: int, index: int) -> str:
    return f"chatcmpl-bench{number:09d}{index}"


def _now() -> int:
    return time.time_ns() // 1_000_000
