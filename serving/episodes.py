"""Episodes and their answers as they are found: in SQL, with the newest in memory so that a running conversation reads nothing.

One episode is one object in this process, whoever asks for it meanwhile: its indices are taken from that.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine, Row, select
from uuid_utils import uuid7

from feedback.store import create_tables, reading
from serving.engines.router import Assignment
from serving.tables import ALIASES, EPISODES, INTERACTIONS, METADATA

OPEN = "open"
_CACHED_EPISODES, _CACHED_THREADS = 8192, 4096
_LOOKED_UP = 64  # threads of one history that are looked for, from the newest

V = TypeVar("V")


@dataclass(slots=True)
class Episode:
    """One conversation of a key owner, with the assignment of its first interaction."""

    episode_id: str
    key_owner: str
    user: str | None
    assignment: Assignment
    created_at: int
    last_at: int
    ended_at: int | None = None
    withdrawn: bool = False
    next_index: int = 0
    newest: str | None = None
    running: int = 0

    def is_open(self, now: int, idle_ms: float) -> bool:
        """Whether the next interaction may join it."""
        return self.ended_at is None and (self.running > 0 or now - self.last_at < idle_ms)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of an interaction: the ids that the next one extends."""

    response_id: str
    episode_id: str
    ids: "array[int]"
    starts: tuple[int, ...]


@dataclass(slots=True)
class Opening:
    """One interaction about to run."""

    response_id: str
    episode: Episode
    index: int
    parent: str | None
    user: str | None
    assignment: Assignment
    user_text: str
    started_at: int
    thread: str
    starts: tuple[int, ...]
    beside: str | None = None  # the first answer to the same request, which stays the episode's newest
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class _Recent(OrderedDict[str, V], Generic[V]):
    """The newest entries only."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound

    def find(self, key: str) -> V | None:
        """What is asked for stays."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: str, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._bound:
            self.popitem(last=False)


class Episodes:
    """Finds and remembers. Reads go to a thread; writes are functions that the writer's jobs call."""

    def __init__(self, engine: Engine) -> None:
        create_tables(engine, METADATA)
        self._reading = reading(engine)
        self._episodes: _Recent[Episode] = _Recent(_CACHED_EPISODES)
        self._aliases: _Recent[str] = _Recent(_CACHED_EPISODES)
        self._answers: _Recent[list[Answer]] = _Recent(_CACHED_THREADS)

    async def by_alias(self, owner: str, alias: str) -> Episode | None:
        """The episode that this key owner calls so: one of its own names, or our id."""
        episode_id = self._aliases.get(f"{owner}\0{alias}")
        if episode_id is None:
            episode_id = await asyncio.to_thread(self._read_alias, owner, alias) or alias.partition(":")[2]
        return await self.by_id(owner, episode_id)

    def named(self, owner: str, alias: str) -> Episode | None:
        """The same without waiting: only what this process named itself."""
        return self._episodes.get(self._aliases.get(f"{owner}\0{alias}", ""))

    async def by_id(self, owner: str, episode_id: str) -> Episode | None:
        """The episode, if this key owner's; a foreign one looks like an unknown one."""
        episode = self._episodes.find(episode_id)
        if episode is None:
            read = await asyncio.to_thread(self._read_episode, episode_id)
            episode = self._episodes.find(episode_id)  # another request may have read it too
            if episode is None and read is not None:
                self._episodes.keep(episode_id, episode := read)
        return episode if episode is not None and episode.key_owner == owner else None

    async def answers(self, threads: Sequence[str]) -> dict[str, list[Answer]]:
        """Stored answers at these threads."""
        wanted = list(threads)[-_LOOKED_UP:]
        found = {thread: self._answers[thread] for thread in wanted if thread in self._answers}
        if wanted and wanted[-1] not in found:
            missing = [thread for thread in wanted if thread not in found]
            for thread, answers in (await asyncio.to_thread(self._read_answers, missing)).items():
                known = {answer.response_id for answer in answers}
                answers += [each for each in self._answers.get(thread, ()) if each.response_id not in known]
                self._answers.keep(thread, answers)
                found[thread] = answers
        return found

    def start(
        self, owner: str, user: str | None, assignment: Assignment, now: int, *, episode_id: str
    ) -> Episode:
        """A new episode, in memory until its first interaction is written."""
        episode = Episode(episode_id, owner, user, assignment, created_at=now, last_at=now)
        self._episodes.keep(episode_id, episode)
        return episode

    def name(self, owner: str, alias: str, episode_id: str) -> None:
        """From now on the key owner's name means this episode."""
        self._aliases.keep(f"{owner}\0{alias}", episode_id)

    async def forget(self, owner: str, episode_id: str) -> None:
        """A withdrawn episode: nothing of it is extended or shown again, a reply that still runs included."""
        episode = await self.by_id(owner, episode_id)
        if episode is not None:
            episode.ended_at, episode.withdrawn = episode.ended_at or episode.last_at, True
        for thread, answers in list(self._answers.items()):
            if any(answer.episode_id == episode_id for answer in answers):
                del self._answers[thread]

    def remember(self, thread: str, answer: Answer) -> None:
        """An answer that may be extended, in an episode that was not withdrawn meanwhile."""
        self._answers.keep(thread, [*self._answers.get(thread, []), answer])

    def _read_alias(self, owner: str, alias: str) -> str | None:
        where = (ALIASES.c.key_owner == owner, ALIASES.c.alias == alias)
        with self._reading.connect() as conn:
            return conn.execute(select(ALIASES.c.episode_id).where(*where)).scalar()

    def _read_episode(self, episode_id: str) -> Episode | None:
        with self._reading.connect() as conn:
            row = conn.execute(select(EPISODES).where(EPISODES.c.episode_id == episode_id)).one_or_none()
        return None if row is None else _episode(row)

    def _read_answers(self, threads: list[str]) -> dict[str, list[Answer]]:
        columns = [INTERACTIONS.c[name] for name in ("thread", "response_id", "episode_id", "ids", "starts")]
        query = select(*columns).where(INTERACTIONS.c.thread.in_(threads)).order_by(INTERACTIONS.c.started_at)
        found: dict[str, list[Answer]] = {}
        with self._reading.connect() as conn:
            for row in conn.execute(query):
                starts = tuple(int(value) for value in row.starts.split())
                ids = array("i")
                ids.frombytes(row.ids)
                answer = Answer(row.response_id, row.episode_id, ids, starts)
                found.setdefault(row.thread, []).append(answer)
        return found


def new_episode_id() -> str:
    """Ours: time-ordered and unguessable."""
    return f"ep_{uuid7().hex}"


def _episode(row: Row[Any]) -> Episode:
    flags = tuple(row.flags.split())
    assignment = Assignment(row.arm, row.version, row.propensity, row.generation, row.canary_id, flags)
    return Episode(
        row.episode_id,
        row.key_owner,
        row.user,
        assignment,
        created_at=row.created_at,
        last_at=row.last_at,
        ended_at=row.ended_at,
        withdrawn=row.withdrawn_at is not None,
        next_index=row.next_index,
        newest=row.newest,
    )
