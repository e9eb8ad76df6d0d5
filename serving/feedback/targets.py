"""What feedback is about: a reply, one of its tool calls, or an episode, of this key owner and nobody else."""

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from feedback.schemas import ComparedReplies
from serving.errors import ApiError, field_error
from serving.feedback.bodies import Given
from serving.tables import ALIASES, EPISODES, INTERACTIONS

EXPIRES_MS = 30 * 86_400_000  # after that nothing may be said about a reply
KINDS = ("id", "session", "openwebui")
_RESPONSE_ID = re.compile(r"^(chatcmpl-|resp[-_])[0-9a-f]{32}$")


@dataclass(frozen=True, slots=True)
class Target:
    """What was found. `response_id` is None for a whole episode."""

    episode_id: str
    response_id: str | None
    tool_call_id: str | None
    user: str | None
    arm: str
    version: str
    canary_id: str | None
    replied_at: int


def find_target(conn: Connection, owner: str, body: Given, *, now: int, where: str) -> Target:
    """Raises ApiError: 404 unknown or foreign, 410 withdrawn or expired, 422 malformed or none."""
    prefix = f"{where}." if where else ""
    response_id, named = body.target_response(), body.target_episode()
    if response_id is not None:
        row = _response(conn, owner, response_id, f"{prefix}response_id")
        episode = _episode_row(conn, row.episode_id)
        if named is not None and find_episode(conn, owner, named) != row.episode_id:
            message = "the response is of another episode"
            raise field_error("episode_id", message, code="mismatch", of=where)
    elif named is not None:
        episode = _episode_row(conn, find_episode(conn, owner, named))
        if episode is None:
            raise ApiError(404, "no such episode", code="target_not_found", param=f"{prefix}episode_id")
        row = _newest(conn, episode.episode_id)
    else:
        message = "a response_id or an episode_id is needed"
        raise field_error("response_id", message, code="missing", of=where)
    _check_alive(episode, row.started_at, now, f"{prefix}{'response_id' if response_id else 'episode_id'}")
    if body.tool_call_id is not None:
        row = _of_call(conn, row, body.tool_call_id, whole=response_id is None, field=f"{prefix}tool_call_id")
        response_id = row.response_id
    return _target(row, response_id, body.tool_call_id, now)


def find_pair(
    conn: Connection, owner: str, *, chosen: str, rejected: str, now: int, where: str
) -> tuple[Target, ComparedReplies]:
    """The two replies of a comparison; it is kept with the newer one, whichever was chosen. Raises as `find_target`."""
    prefix = f"{where}." if where else ""
    if chosen == rejected:
        raise field_error("rejected", "the same reply as chosen", of=where)
    found = []
    for named, field in ((chosen, f"{prefix}chosen"), (rejected, f"{prefix}rejected")):
        row = _response(conn, owner, named, field)
        _check_alive(_episode_row(conn, row.episode_id), row.started_at, now, field)
        found.append(row)
    better, worse = found
    home = max(found, key=lambda row: (row.started_at, row.response_id))
    pair = ComparedReplies(
        chosen=better.response_id,
        rejected=worse.response_id,
        chosen_episode=better.episode_id,
        rejected_episode=worse.episode_id,
        same_question=_same_question(better, worse),
    )
    return _target(home, home.response_id, None, now), pair


def replied_at(conn: Connection, episode_id: str, response_id: str | None, *, now: int) -> int:
    """When what was rated came to its end. Raises 410 where nothing may be said about it any more."""
    where = INTERACTIONS.c.response_id == response_id
    row = conn.execute(select(INTERACTIONS).where(where)).one_or_none() if response_id else None
    row = row or _newest(conn, episode_id)
    _check_alive(_episode_row(conn, episode_id), row.started_at, now, "id")
    return int(row.ended_at or now)


def find_episode(conn: Connection, owner: str, named: str) -> str | None:
    """Our id of the episode that the key owner calls so. An id of ours means that episode, whatever went on under it."""
    where = (EPISODES.c.episode_id == named, EPISODES.c.key_owner == owner)
    own = conn.execute(select(EPISODES.c.episode_id).where(*where)).scalar()
    if own is not None:
        return str(own)
    names = [f"{kind}:{named}" for kind in KINDS]
    query = select(ALIASES.c.episode_id).where(ALIASES.c.key_owner == owner, ALIASES.c.alias.in_(names))
    found = conn.execute(query).scalars().first()
    return None if found is None else str(found)


def _response(conn: Connection, owner: str, response_id: str, field: str) -> Row[Any]:
    if not _RESPONSE_ID.match(response_id):
        raise field_error(field, "not a response id like chatcmpl-…", code="malformed_id")
    where = (INTERACTIONS.c.response_id == response_id, INTERACTIONS.c.key_owner == owner)
    row = conn.execute(select(INTERACTIONS).where(*where)).one_or_none()
    if row is None:
        raise ApiError(404, "no such response", code="target_not_found", param=field)
    return row


def _target(row: Row[Any], response_id: str | None, tool_call_id: str | None, now: int) -> Target:
    return Target(
        row.episode_id,
        response_id,
        tool_call_id,
        row.user,
        row.arm,
        row.version,
        row.canary_id,
        row.ended_at or now,
    )


def _same_question(one: Row[Any], other: Row[Any]) -> bool:
    """Whether both answer the same conversation, by the ids that were before the newest message, and that message."""
    if one.user_text != other.user_text:
        return False
    if one.ids is None or other.ids is None:  # still running, or cut off
        return one.parent is not None and one.parent == other.parent
    return _asked(one) == _asked(other)


def _asked(row: Row[Any]) -> bytes:
    """The ids before the newest user message; 4 bytes each."""
    return bytes(row.ids[: 4 * int(row.starts.split()[-1])])


def _newest(conn: Connection, episode_id: str) -> Row[Any]:
    query = select(INTERACTIONS).where(INTERACTIONS.c.episode_id == episode_id)
    return conn.execute(query.order_by(INTERACTIONS.c.index.desc()).limit(1)).one()


def _episode_row(conn: Connection, episode_id: str | None) -> Row[Any] | None:
    return conn.execute(select(EPISODES).where(EPISODES.c.episode_id == episode_id)).one_or_none()


def _check_alive(episode: Row[Any] | None, started_at: int, now: int, field: str) -> None:
    if episode is not None and episode.withdrawn_at is not None:
        raise ApiError(410, "the episode was withdrawn", code="withdrawn", param=field)
    if now - started_at > EXPIRES_MS:
        raise ApiError(410, "the reply is too old to be rated", code="expired", param=field)


def _of_call(conn: Connection, row: Row[Any], call_id: str, *, whole: bool, field: str) -> Row[Any]:
    """The interaction in which the call was made."""
    where = INTERACTIONS.c.episode_id == row.episode_id
    rows = list(conn.execute(select(INTERACTIONS).where(where))) if whole else [row]
    for each in rows:
        if call_id in each.call_ids.split():
            return each
    raise ApiError(404, "no such tool call", code="target_not_found", param=field)
