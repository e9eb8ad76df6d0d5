"""Episodes and their answers: durable in SQL, with the newest in memory so that a running conversation reads nothing.

A response id is committed before its first byte leaves; an assignment is written once and never changes.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, Row, bindparam, insert, select, update
from uuid_utils import uuid7

from feedback.schemas import Status
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
        episode = self._episodes.get(episode_id)
        if episode is None:
            episode = await asyncio.to_thread(self._read_episode, episode_id)
            if episode is not None:
                self._episodes.keep(episode_id, episode)
        return episode if episode is not None and episode.key_owner == owner else None

    async def answers(self, threads: Sequence[str]) -> dict[str, list[Answer]]:
        """Stored answers at these threads."""
        wanted = list(threads)[-_LOOKED_UP:]
        found = {thread: self._answers[thread] for thread in wanted if thread in self._answers}
        if wanted and wanted[-1] not in found:
            missing = [thread for thread in wanted if thread not in found]
            for thread, answers in (await asyncio.to_thread(self._read_answers, missing)).items():
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

    def forget(self, episode_id: str) -> None:
        """A withdrawn episode: nothing of it is extended or shown again."""
        episode = self._episodes.get(episode_id)
        if episode is not None:
            episode.ended_at = episode.ended_at or episode.last_at
        for thread, answers in list(self._answers.items()):
            if any(answer.episode_id == episode_id for answer in answers):
                del self._answers[thread]

    def remember(self, thread: str, answer: Answer) -> None:
        """An answer that may be extended."""
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


# Built once: making a statement costs more than running it.
_INSERT_EPISODE, _INSERT_INTERACTION = insert(EPISODES), insert(INTERACTIONS)
_MOVE_EPISODE = (
    update(EPISODES)
    .where(EPISODES.c.episode_id == bindparam("which"))
    .values(last_at=bindparam("at"), next_index=bindparam("next"), newest=bindparam("newest_id"))
)
_TOUCH_EPISODE = (
    update(EPISODES).where(EPISODES.c.episode_id == bindparam("which")).values(last_at=bindparam("at"))
)
_CLOSING = ("status", "ended_at", "delivered", "call_ids", "thread", "ids", "starts")
_CLOSE_INTERACTION = (
    update(INTERACTIONS)
    .where(INTERACTIONS.c.response_id == bindparam("which"))
    .values({name: bindparam(f"new_{name}") for name in _CLOSING})
)


def write_opening(conn: Connection, opening: Opening) -> None:
    """Make the response id, its episode and the episode's names durable."""
    episode = opening.episode
    moved = {
        "at": opening.started_at,
        "next": opening.index + 1,
        "newest_id": opening.beside or opening.response_id,
    }
    if (
        opening.index == 0
        or conn.execute(_MOVE_EPISODE, {"which": episode.episode_id, **moved}).rowcount == 0
    ):
        conn.execute(_INSERT_EPISODE, _episode_columns(opening))
    for alias in opening.aliases:
        _write_alias(conn, episode, alias)
    conn.execute(_INSERT_INTERACTION, _opening_columns(opening))


def write_closing(
    conn: Connection,
    opening: Opening,
    *,
    status: Status,
    ended_at: int,
    delivered: str,
    call_ids: Iterable[str],
    answer: Answer | None,
    thread: str | None,
) -> None:
    """Note how the interaction ended, and the ids that the next one extends."""
    values = {
        "which": opening.response_id,
        "new_status": str(status),
        "new_ended_at": ended_at,
        "new_delivered": delivered,
        "new_call_ids": " ".join(call_ids),
        "new_thread": thread,
        "new_ids": None if answer is None else answer.ids.tobytes(),
        "new_starts": None if answer is None else " ".join(map(str, answer.starts)),
    }
    conn.execute(_CLOSE_INTERACTION, values)
    conn.execute(_TOUCH_EPISODE, {"which": opening.episode.episode_id, "at": ended_at})


def _write_alias(conn: Connection, episode: Episode, alias: str) -> None:
    where = (ALIASES.c.key_owner == episode.key_owner, ALIASES.c.alias == alias)
    moved = conn.execute(update(ALIASES).where(*where).values(episode_id=episode.episode_id))
    if moved.rowcount == 0:
        named = {"key_owner": episode.key_owner, "alias": alias, "episode_id": episode.episode_id}
        conn.execute(insert(ALIASES).values(**named))


def _episode_columns(opening: Opening) -> dict[str, Any]:
    episode = opening.episode
    return {
        "episode_id": episode.episode_id,
        "key_owner": episode.key_owner,
        "user": episode.user,
        "created_at": episode.created_at,
        "last_at": opening.started_at,
        "next_index": opening.index + 1,
        "newest": opening.response_id,
        **assignment_columns(episode.assignment),
    }


def assignment_columns(assignment: Assignment) -> dict[str, Any]:
    """An assignment as columns."""
    return {
        "arm": assignment.arm,
        "version": assignment.version,
        "propensity": assignment.propensity,
        "generation": assignment.generation,
        "canary_id": assignment.canary_id,
        "flags": " ".join(assignment.flags),
    }


def _opening_columns(opening: Opening) -> dict[str, Any]:
    return {
        **assignment_columns(opening.assignment),
        "response_id": opening.response_id,
        "episode_id": opening.episode.episode_id,
        "key_owner": opening.episode.key_owner,
        "user": opening.user,
        "index": opening.index,
        "parent": opening.parent,
        "status": OPEN,
        "started_at": opening.started_at,
        "user_text": opening.user_text,
        "flags": " ".join(opening.flags),
    }


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
        next_index=row.next_index,
        newest=row.newest,
    )
