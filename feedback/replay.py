"""Rebuilds the experiences from the topics into a fresh database, and holds each against the last revision that was sent.

Windows are measured in record time and an id is the hash of its inputs, so the same records give the same bytes. What
records cannot tell is taken from `ratchet.experiences`: how far revisions had counted, and what the judge of that time said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from sqlalchemy import Connection, Engine

from feedback import ledger, sent
from feedback.agent_file import AgentFile
from feedback.bus import Bus, Partition, Reader, Record, read_to_the_end
from feedback.closing import Closer, pairs_of, stamped
from feedback.fit import fit_experience
from feedback.intake import DUE_NOW, take_in
from feedback.join import Joined, Stamped, join
from feedback.judging import Judging
from feedback.ledger import Standing
from feedback.metric_section import longest_window
from feedback.schemas import EXPERIENCES, FEEDBACK, Experience, Interaction, Unreadable
from feedback.store import advance
from feedback.worker import READER, TOPICS

_BATCH = 200
_NAMED = 20
"""Of the episodes that came out differently, so many are named."""

Told = Callable[[str, int], None]
"""What is going on, and how many of it are done."""


class NotFresh(ValueError):
    """The database holds records already."""


@dataclass
class Replayed:
    """What came of it. `same` and `different` are against the last revision sent; `open` and `partial` have no price."""

    records: int = 0
    dead: int = 0
    foreign: int = 0
    episodes: int = 0
    same: int = 0
    different: int = 0
    unsent: int = 0
    missing: int = 0
    open: int = 0
    partial: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def is_faithful(self) -> bool:
        """Nothing that was sent came out differently, or not at all."""
        return not self.different and not self.missing


def replay(
    engine: Engine,
    bus: Bus,
    *,
    agent: AgentFile,
    now: int,
    since: int | None = None,
    silence_s: float = 30.0,
    told: Told = lambda what, count: None,
) -> Replayed:
    """Read the topics from `since` (ms; None: the earliest) to their end, then price what had closed by `now`.

    A worker that starts on this database goes on where it ends. Raises NotFresh, or BusError when the bus is silent.
    """
    ledger.create_ledger(engine)
    sent.create_sent(engine)
    with engine.begin() as conn:
        if not ledger.is_empty(conn):
            raise NotFresh("the database holds records already: a replay needs an empty one")
    replaying = _Replay(engine, agent, since=since, told=told)
    for topics, take in ((TOPICS, replaying.take_records), ((EXPERIENCES,), replaying.take_sent)):
        reader = bus.reader(topics)
        try:
            if since is not None and topics == TOPICS:
                reader.seek(_positions(reader, since, agent))
            read_to_the_end(reader, take, silence_s=silence_s)
        finally:
            reader.close()
    replaying.rebuild(now)
    return replaying.found


def _positions(reader: Reader, since: int, agent: AgentFile) -> dict[Partition, int]:
    """Ratings are read from a window earlier than replies: they may be older than what they rate."""
    replies, ratings = reader.since(since), reader.since(max(0, since - longest_window(agent.metrics)))
    return {where: (ratings if where[0] == FEEDBACK else replies)[where] for where in replies}


class _Replay:
    """One replay in the making."""

    def __init__(self, engine: Engine, agent: AgentFile, *, since: int | None, told: Told) -> None:
        self.found = Replayed()
        self._engine = engine
        self._agent = agent.agent
        self._since = since
        self._told = told
        self._judging = Judging(agent.rewards.implicit, ())
        self._closer = Closer(agent, self._judging)
        self._read: dict[Partition, int] = {}

    def take_records(self, records: Sequence[Record]) -> None:
        """Into state, as the worker does, positions and all."""
        ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        moves = {where: (self._read.get(where), end) for where, end in ends.items()}
        with self._engine.begin() as conn:
            intake = take_in(conn, records, agent=self._agent, idle_ms=self._closer.join_rules.idle_ms)
            advance(conn, READER, moves)
        self._read |= ends
        self.found.records += len(records)
        self.found.dead += intake.dead_by_topic.total()
        self.found.foreign += intake.foreign_by_topic.total()
        self._told("records read", self.found.records)

    def take_sent(self, records: Sequence[Record]) -> None:
        """Keep of each episode the newest revision that was sent."""
        newest: dict[str, sent.Sent] = {}
        for record in records:
            try:
                experience = Experience.from_bytes(record.value)
            except Unreadable:
                continue
            known = newest.get(experience.episode_id)
            if experience.agent == self._agent and (known is None or experience.revision > known.revision):
                newest[experience.episode_id] = sent.Sent(
                    experience.episode_id, experience.revision, experience.started_at, record.value or b""
                )
        with self._engine.begin() as conn:
            sent.keep_newest(conn, list(newest.values()))

    def rebuild(self, now: int) -> None:
        """Join and price every episode, in the order of their time."""
        last: Standing | None = None
        while True:
            with self._engine.begin() as conn:
                standings = ledger.in_time_order(conn, after=last, limit=_BATCH)
                if not standings:
                    break
                self._rebuild(conn, standings, now=now)
            last = standings[-1]
            self._told("episodes rebuilt", self.found.episodes)
        with self._engine.begin() as conn:
            missing = sent.not_rebuilt(conn, since=self._since or 0)
        self.found.missing = len(missing)
        self.found.named += missing[: max(0, _NAMED - len(self.found.named))]

    def _rebuild(self, conn: Connection, standings: Sequence[Standing], *, now: int) -> None:
        names = [standing.episode_id for standing in standings]
        stored, last_sent = ledger.records_of(conn, names), sent.last_sent(conn, names)
        rebuilt, settled = [], []
        for standing in standings:
            records = [stamped(kept) for kept in stored.get(standing.episode_id, [])]
            if not any(_begins(record, self._since or 0) for record in records):
                self.found.partial += 1
                ledger.drop(conn, [standing.episode_id])
                continue
            before = last_sent.get(standing.episode_id)
            joined = join(records, self._closer.join_rules, now=now)
            if joined is None:
                self.found.open += 1
                rebuilt += [] if before is None else [before]
                settled.append(_as_sent(standing, before))
                continue
            try:
                experience, value, after = self._settle(joined, standing, before)
            except ValidationError:
                self.found.dead += 1  # set aside, as the worker did
                settled.append(replace(standing, due_at=None, closed=True))
                continue
            rebuilt.append(sent.Sent(joined.episode_id, experience.revision, experience.started_at, value))
            settled.append(after)
            if after.withdrawn:
                ledger.erase(conn, joined.episode_id, [each.response_id for each in joined.interactions])
        sent.keep_rebuilt(conn, rebuilt)
        ledger.stand(conn, settled)

    def _settle(
        self, joined: Joined, standing: Standing, before: sent.Sent | None
    ) -> tuple[Experience, bytes, Standing]:
        """As it was sent where the inputs are the same; else as a worker that starts now will send it."""
        self.found.episodes += 1
        standing = replace(_as_sent(standing, before), closed=True)
        if before is None:
            self.found.unsent += 1
            return *self._price_anew(joined), replace(standing, due_at=DUE_NOW)
        known = Experience.from_bytes(before.value)
        if known.withdrawn:
            # Its words are gone, and no replay brings them back.
            self.found.same += 1
            return known, before.value, replace(standing, due_at=None, withdrawn=True)
        if known.judgement is not None:
            experience = self._closer.price(replace(joined, revision=known.revision), known.judgement)
            if fit_experience(experience) == before.value:
                self.found.same += 1
                self._judging.note(pairs_of(joined, known.judgement))
                return experience, before.value, replace(standing, due_at=None)
        self.found.different += 1
        if len(self.found.named) < _NAMED:
            self.found.named.append(joined.episode_id)
        newer = replace(joined, revision=max(joined.revision, known.revision + 1))
        return *self._price_anew(newer), replace(standing, due_at=DUE_NOW)

    def _price_anew(self, joined: Joined) -> tuple[Experience, bytes]:
        judgement = self._closer.judge(joined)
        self._judging.note(pairs_of(joined, judgement))
        experience = self._closer.price(joined, judgement)
        return experience, fit_experience(experience)


def _begins(record: Stamped, since: int) -> bool:
    """Whether an episode begins with it, and since then: without its first reply it is not whole."""
    message = record.message
    return isinstance(message, Interaction) and (since == 0 or (message.index == 0 and record.at >= since))


def _as_sent(standing: Standing, before: sent.Sent | None) -> Standing:
    """Readers hold this revision: the next one must be above it."""
    if before is None:
        return standing
    known = Experience.from_bytes(before.value)
    return replace(standing, revision=known.revision, experience_id=known.id)
