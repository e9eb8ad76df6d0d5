"""Feedback: found its target, checked, stored with its outgoing message in one transaction. All calls run in the writer's thread.

One natural key (target, name, rater) holds one piece of feedback: the latest wins, with the next revision. A foreign
target and an unknown one look alike.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row, insert, select, update
from uuid_utils import uuid7

from feedback.agent_file import AgentFile
from feedback.metric_section import Metric
from feedback.outbox import Outbox
from feedback.people import nobody, person
from feedback.schemas import FEEDBACK, ComparedReplies, Feedback, Source, canonical
from serving import idempotency
from serving.auth import Key
from serving.errors import ApiError, field_error
from serving.feedback.bodies import Given, GivenPatch
from serving.feedback.said import changed, content_of, metric_of, name_of, pair_of
from serving.feedback.shown import shown
from serving.feedback.targets import Target, find_episode, find_pair, find_target, replied_at
from serving.limits import Pace
from serving.tables import RATINGS

_TIDY_MS = 3600_000
Op = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a request did: `change` is new, changed or replayed."""

    reply: dict[str, Any]
    change: str
    source: str  # human, llm_judge, code
    delay_s: float = 0.0  # from the reply to what was said


class Ratings:
    """One per gateway."""

    def __init__(
        self, agent_file: AgentFile, outbox: Outbox, clock: Callable[[], int], *, pace: Pace | None = None
    ) -> None:
        self._agent, self._metrics = agent_file.agent, agent_file.metrics
        self._outbox, self._clock = outbox, clock
        self._pace = pace or Pace(0, 1)
        self._tidied_at = clock()

    def submit(self, conn: Connection, key: Key, body: Given, *, where: str = "") -> Stored:
        """Store one piece of feedback. `where` is its place in a batch, for error messages."""
        now = self._clock()
        self._tidy(conn, now)
        name = name_of(body, where)
        content = content_of(self._metrics, name, body, where=where)
        metric = metric_of(self._metrics, name, "name")
        target, pair = _target(conn, key, body, metric, now=now, where=where)
        if content["correction"] is not None and target.response_id is None:
            raise field_error("response_id", "a correction is of one reply", code="missing", of=where)
        content["comparison"] = None if pair is None else pair.model_dump()
        text = canonical(content).decode()
        rater = _rater(key, body, target)
        self._slow_down(rater)
        natural = _natural_key(target, pair, name, rater)
        old = _find(conn, key.owner, natural, body.id, where)
        given_at = _given_at(body.timestamp, now, where)
        delay_s = max(0, now - target.replied_at) / 1000
        stored = {"source": content["source"]["type"], "delay_s": delay_s}
        if old is not None and not old.deleted and old.content == text:
            return Stored({**shown(old._mapping, target), "change": "replayed"}, "replayed", **stored)
        again = old is None or old.deleted
        row = {
            "key_owner": key.owner,
            "id": old.id if old is not None else body.id or f"fb_{uuid7().hex}",
            "revision": old.revision + 1 if old is not None else 1,
            "natural_key": natural,
            "episode_id": target.episode_id,
            "response_id": target.response_id,
            "tool_call_id": target.tool_call_id,
            "name": name,
            "content": text,
            "rater": rater,
            "status": "late" if delay_s > metric.window else "accepted",
            "given_at": given_at,
            "created_at": old.created_at if old is not None else now,
            "updated_at": now,
            "deleted": False,
        }
        if not body.dryrun:
            _write(conn, row, exists=old is not None)
            self._send(conn, row, op="create" if again else "update")
        change = "new" if again else "changed"
        return Stored({**shown(row, target), "change": change}, change, **stored)

    def target_of(self, conn: Connection, key: Key, name: str, body: Given) -> Target:
        """What feedback of that name on that target would be about; nothing is stored."""
        metric = metric_of(self._metrics, name, "name")
        if metric.type == "comparison":
            raise field_error("name", "a comparison is of two targets")
        return _single(conn, key, body, metric, now=self._clock(), where="")

    def patch(self, conn: Connection, key: Key, feedback_id: str, patch: GivenPatch) -> Stored:
        """Change what is given of one piece of feedback; past the window it is on record and no more."""
        old, now = self._owned(conn, key, feedback_id), self._clock()
        ended_at = replied_at(conn, old.episode_id, old.response_id, now=now)
        content = json.loads(old.content)
        new = changed(self._metrics, old.name, content, patch)
        if new["correction"] is not None and old.response_id is None:
            raise field_error("correction", "is of one reply")
        text, source = canonical(new).decode(), content["source"]["type"]
        if text == old.content:
            return Stored({**shown(old._mapping, None), "change": "replayed"}, "replayed", source)
        delay_s = max(0, now - ended_at) / 1000
        late = delay_s > metric_of(self._metrics, old.name, "name").window
        row = {
            **old._mapping,
            "content": text,
            "revision": old.revision + 1,
            "status": "late" if late else "accepted",
            "updated_at": now,
        }
        _write(conn, row, exists=True)
        self._send(conn, row, op="update")
        return Stored({**shown(row, None), "change": "changed"}, "changed", source, delay_s)

    def delete(self, conn: Connection, key: Key, feedback_id: str) -> dict[str, Any]:
        """Take one piece of feedback back."""
        old = self._owned(conn, key, feedback_id)
        row = {**old._mapping, "deleted": True, "revision": old.revision + 1, "updated_at": self._clock()}
        _write(conn, row, exists=True)
        self._send(conn, row, op="delete")
        return {"id": feedback_id, "object": "feedback.deleted", "deleted": True, "revision": row["revision"]}

    def get(self, conn: Connection, key: Key, feedback_id: str) -> dict[str, Any]:
        """One piece of feedback."""
        return shown(self._owned(conn, key, feedback_id)._mapping, None)

    def of_episode(self, conn: Connection, key: Key, episode_id: str) -> list[dict[str, Any]]:
        """All feedback on an episode, oldest first."""
        where = (RATINGS.c.key_owner == key.owner, RATINGS.c.episode_id == episode_id, ~RATINGS.c.deleted)
        rows = conn.execute(select(RATINGS).where(*where).order_by(RATINGS.c.created_at, RATINGS.c.id))
        return [shown(row._mapping, None) for row in rows]

    def forget_episode(self, conn: Connection, episode_id: str) -> None:
        """Nothing that was said about a withdrawn episode stays; what was sent is tombstoned with the episode."""
        blank = {"value": None, "score": None, "comment": None, "correction": None, "comparison": None}
        content = canonical(blank | {"source": {"type": "human", "id": None}, "metadata": {}}).decode()
        where = RATINGS.c.episode_id == episode_id
        conn.execute(update(RATINGS).where(where).values(deleted=True, content=content))
        idempotency.forget_episode(conn, episode_id)

    def _owned(self, conn: Connection, key: Key, feedback_id: str) -> Row[Any]:
        where = (RATINGS.c.key_owner == key.owner, RATINGS.c.id == feedback_id)
        row = conn.execute(select(RATINGS).where(*where)).one_or_none()
        if row is None:
            raise ApiError(404, "no such feedback", code="feedback_not_found", param="id")
        if row.deleted:
            raise ApiError(410, "this feedback was withdrawn", code="withdrawn", param="id")
        return row

    def _slow_down(self, rater: str) -> None:
        if wait := self._pace.wait(rater, time.monotonic()):
            raise ApiError(
                429, "too much feedback by one rater", code="rate_limit_exceeded", retry_after_s=wait
            )

    def _tidy(self, conn: Connection, now: int) -> None:
        """Once an hour, old idempotency keys are dropped."""
        if now - self._tidied_at > _TIDY_MS:
            self._tidied_at = now
            idempotency.forget(conn, before=now - idempotency.KEPT_MS)

    def _send(self, conn: Connection, row: Any, *, op: Op) -> None:
        content = json.loads(row["content"])
        same = ("id", "revision", "episode_id", "response_id", "tool_call_id", "name", "key_owner", "rater")
        message = Feedback(
            **{field: row[field] for field in (*same, "given_at")},
            op=op,
            agent=self._agent,
            value=content["value"],
            score=content["score"],
            comment=content["comment"],
            correction=content["correction"],
            comparison=content.get("comparison"),
            source=Source(**content["source"]),
            received_at=row["updated_at"],
        )
        self._outbox.put(conn, FEEDBACK, row["episode_id"], message.to_bytes(), row["updated_at"])


def _target(
    conn: Connection, key: Key, body: Given, metric: Metric, *, now: int, where: str
) -> tuple[Target, ComparedReplies | None]:
    """What it is about, and the two replies of a comparison."""
    if metric.type == "comparison":
        chosen, rejected = pair_of(body, where)
        target, pair = find_pair(conn, key.owner, chosen=chosen, rejected=rejected, now=now, where=where)
        named = body.target_episode()
        episodes = (pair.chosen_episode, pair.rejected_episode)
        wrong = {
            "response_id": body.target_response() not in (None, chosen, rejected),
            "episode_id": named is not None and find_episode(conn, key.owner, named) not in episodes,
            "tool_call_id": body.tool_call_id is not None,
        }
        for field in (field for field, is_wrong in wrong.items() if is_wrong):
            message = "a comparison is of the two replies that it names"
            raise field_error(field, message, code="mismatch", of=where)
        return target, pair
    return _single(conn, key, body, metric, now=now, where=where), None


def _single(conn: Connection, key: Key, body: Given, metric: Metric, *, now: int, where: str) -> Target:
    """One target. A metric of the whole episode may be given with any of its replies."""
    target = find_target(conn, key.owner, body, now=now, where=where)
    if metric.level == "episode":
        if target.tool_call_id is not None:
            raise field_error("tool_call_id", "the metric is of episodes", code="mismatch", of=where)
        target = replace(target, response_id=None)
    return target


def _natural_key(target: Target, pair: ComparedReplies | None, name: str, rater: str) -> str:
    """Whose opinion of what; a pair is the same one whichever was chosen."""
    about: Any = target.response_id or target.episode_id
    if pair is not None:
        about = sorted((pair.chosen, pair.rejected))
    return canonical([about, target.tool_call_id, name, rater]).decode()


def _rater(key: Key, body: Given, target: Target) -> str:
    """The person who chatted, else the one the key vouches for, else the episode (design 13, Raters).

    A program is nobody's opinion but its own, whoever's reply it looks at.
    """
    named = body.source.id if body.source else None
    if body.source is not None and body.source.type != "human":
        return person(key.owner, f"{body.source.type}:{named or ''}")
    if target.user is None and named and key.may("end-users"):
        return person(key.owner, named)
    return target.user or nobody(key.owner, target.episode_id)


def _find(conn: Connection, owner: str, natural: str, wanted_id: str | None, where: str) -> Row[Any] | None:
    """The row that this feedback changes."""
    if wanted_id is not None:
        condition = (RATINGS.c.key_owner == owner, RATINGS.c.id == wanted_id)
        row = conn.execute(select(RATINGS).where(*condition)).one_or_none()
        if row is not None and row.natural_key != natural:
            message = "already used for another target, name or rater"
            raise field_error("id", message, code="id_reused", of=where)
        if row is not None:
            return row
    condition = (RATINGS.c.key_owner == owner, RATINGS.c.natural_key == natural)
    return conn.execute(select(RATINGS).where(*condition).limit(1)).one_or_none()


def _write(conn: Connection, row: dict[str, Any], *, exists: bool) -> None:
    if not exists:
        conn.execute(insert(RATINGS).values(**row))
        return
    where = (RATINGS.c.key_owner == row["key_owner"], RATINGS.c.id == row["id"])
    conn.execute(update(RATINGS).where(*where).values(**row))


def _given_at(text: str | None, now: int, where: str) -> int:
    """When it was given; nobody rates in the future."""
    if text is None:
        return now
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, min(now, int(moment.timestamp() * 1000)))
    except (ValueError, OverflowError) as error:
        raise field_error("timestamp", "must be ISO 8601", of=where) from error
