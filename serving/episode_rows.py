"""Writes episodes and interactions as the writer's jobs: a response id before its first byte leaves, an assignment once and for ever.

Of a withdrawn episode only blanks are written, whatever was still running when it was withdrawn.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from feedback.schemas import Status
from serving.engines.router import Assignment
from serving.episodes import OPEN, Answer, Episode, Opening
from serving.tables import ALIASES, EPISODES, INTERACTIONS

# Built once: making a statement costs more than running it.
_INSERT_EPISODE, _INSERT_INTERACTION = insert(EPISODES), insert(INTERACTIONS)
_MOVE_EPISODE = (
    update(EPISODES)
    .where(EPISODES.c.episode_id == bindparam("which"))
    .values(last_at=bindparam("at"), next_index=bindparam("next"), newest=bindparam("newest_id"))
    .returning(EPISODES.c.withdrawn_at)
)
_TOUCH_EPISODE = (
    update(EPISODES)
    .where(EPISODES.c.episode_id == bindparam("which"))
    .values(last_at=bindparam("at"))
    .returning(EPISODES.c.withdrawn_at)
)
_WITHDRAWN = select(EPISODES.c.withdrawn_at).where(EPISODES.c.episode_id == bindparam("which"))
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
    known = None
    if opening.index > 0:
        known = conn.execute(_MOVE_EPISODE, {"which": episode.episode_id, **moved}).one_or_none()
    if known is None:
        conn.execute(_INSERT_EPISODE, _episode_columns(opening))
    for alias in opening.aliases:
        _write_alias(conn, episode, alias)
    columns = _opening_columns(opening)
    if known is not None and known.withdrawn_at is not None:
        columns["user_text"] = ""
    conn.execute(_INSERT_INTERACTION, columns)


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
) -> bool:
    """Note how the interaction ended, and the ids that the next one extends; False where the episode was withdrawn meanwhile."""
    touched = {"which": opening.episode.episode_id, "at": ended_at}
    withdrawn = conn.execute(_TOUCH_EPISODE, touched).scalar() is not None
    if withdrawn:
        answer, thread = None, None
    values = {
        "which": opening.response_id,
        "new_status": str(status),
        "new_ended_at": ended_at,
        "new_delivered": None if withdrawn else delivered,
        "new_call_ids": " ".join(call_ids),
        "new_thread": thread,
        "new_ids": None if answer is None else answer.ids.tobytes(),
        "new_starts": None if answer is None else " ".join(map(str, answer.starts)),
    }
    conn.execute(_CLOSE_INTERACTION, values)
    return not withdrawn


def is_withdrawn(conn: Connection, episode_id: str) -> bool:
    """Whether nothing of the episode may be kept any more."""
    return conn.execute(_WITHDRAWN, {"which": episode_id}).scalar() is not None


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
        **_assignment_columns(episode.assignment),
    }


def _assignment_columns(assignment: Assignment) -> dict[str, Any]:
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
        **_assignment_columns(opening.assignment),
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
