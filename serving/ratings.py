"""Feedback: found its target, checked, stored with its outgoing message in one transaction. All calls run in the writer's thread.

One natural key (target, name, rater) holds one rating: the latest wins, with the next revision. A foreign target and an
unknown one look alike.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from uuid_utils import uuid7

from feedback.agent_file import AgentFile
from feedback.metric_section import Metric
from feedback.outbox import Outbox
from feedback.schemas import FEEDBACK, Feedback, Source, canonical
from serving.auth import Key, person
from serving.bodies import FeedbackBody, FeedbackPatch
from serving.errors import ApiError
from serving.scores import BadValue, score_of
from serving.tables import IDEMPOTENCY, RATINGS
from serving.targets import Target, find_target

DEMONSTRATION, COMMENT = "demonstration", "comment"
RESERVED = (DEMONSTRATION, COMMENT)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a request did: `change` is new, changed or replayed."""

    reply: dict[str, Any]
    change: str


class Ratings:
    """One per gateway."""

    def __init__(self, agent_file: AgentFile, outbox: Outbox, clock: Callable[[], int]) -> None:
        self._agent, self._metrics = agent_file.agent, agent_file.metrics
        self._outbox, self._clock = outbox, clock

    def submit(self, conn: Connection, key: Key, body: FeedbackBody, *, where: str = "") -> Stored:
        """Store one piece of feedback. `where` is its place in a batch, for error messages."""
        now = self._clock()
        name, content = self._content(body, where)
        target = find_target(conn, key.owner, body, now=now, where=where)
        rater = _rater(key, body, target)
        natural = canonical(
            [target.response_id or target.episode_id, target.tool_call_id, name, rater]
        ).decode()
        old = _find(conn, key.owner, natural, body.id, where)
        given_at = _given_at(body.timestamp, now, where)
        if old is not None and not old.deleted and old.content == content:
            return Stored({**_shown(old, target), "change": "replayed"}, "replayed")
        late = now - target.replied_at > self._window_ms(name)
        row = {
            "key_owner": key.owner,
            "id": old.id if old is not None else body.id or f"fb_{uuid7().hex}",
            "revision": old.revision + 1 if old is not None else 1,
            "natural_key": natural,
            "episode_id": target.episode_id,
            "response_id": target.response_id,
            "tool_call_id": target.tool_call_id,
            "name": name,
            "content": content,
            "rater": rater,
            "status": "late" if late else "accepted",
            "given_at": given_at,
            "created_at": old.created_at if old is not None else now,
            "updated_at": now,
            "deleted": False,
        }
        stored = _Row(row)
        if not body.dryrun:
            _write(conn, row, exists=old is not None)
            self._send(conn, stored, op="create" if old is None or old.deleted else "update")
        change = "new" if old is None or old.deleted else "changed"
        return Stored({**_shown(stored, target), "change": change}, change)

    def patch(self, conn: Connection, key: Key, feedback_id: str, patch: FeedbackPatch) -> Stored:
        """Change what is given of one piece of feedback."""
        old, now = self._owned(conn, key, feedback_id), self._clock()
        content = json.loads(old.content)
        given = patch.model_fields_set
        if "value" in given:
            content["value"], content["score"] = self._scored(old.name, patch.value, "value")
        if "comment" in given:
            content["comment"] = patch.comment
        if "correction" in given:
            content["correction"] = _correction(patch.correction, "correction")
        text = canonical(content).decode()
        if text == old.content:
            return Stored({**_shown(old, None), "change": "replayed"}, "replayed")
        row = {**old._mapping, "content": text, "revision": old.revision + 1, "updated_at": now}
        _write(conn, row, exists=True)
        self._send(conn, _Row(row), op="update")
        return Stored({**_shown(_Row(row), None), "change": "changed"}, "changed")

    def delete(self, conn: Connection, key: Key, feedback_id: str) -> dict[str, Any]:
        """Take one piece of feedback back."""
        old = self._owned(conn, key, feedback_id)
        row = {**old._mapping, "deleted": True, "revision": old.revision + 1, "updated_at": self._clock()}
        _write(conn, row, exists=True)
        self._send(conn, _Row(row), op="delete")
        return {"id": feedback_id, "object": "feedback.deleted", "deleted": True, "revision": row["revision"]}

    def get(self, conn: Connection, key: Key, feedback_id: str) -> dict[str, Any]:
        """One piece of feedback."""
        return _shown(self._owned(conn, key, feedback_id), None)

    def of_episode(self, conn: Connection, key: Key, episode_id: str) -> list[dict[str, Any]]:
        """All feedback on an episode, oldest first."""
        where = (RATINGS.c.key_owner == key.owner, RATINGS.c.episode_id == episode_id, ~RATINGS.c.deleted)
        rows = conn.execute(select(RATINGS).where(*where).order_by(RATINGS.c.created_at, RATINGS.c.id))
        return [_shown(row, None) for row in rows]

    def _owned(self, conn: Connection, key: Key, feedback_id: str) -> Row[Any]:
        where = (RATINGS.c.key_owner == key.owner, RATINGS.c.id == feedback_id)
        row = conn.execute(select(RATINGS).where(*where)).one_or_none()
        if row is None:
            raise ApiError(404, "no such feedback", code="feedback_not_found", param="id")
        if row.deleted:
            raise ApiError(410, "this feedback was withdrawn", code="withdrawn", param="id")
        return row

    def _content(self, body: FeedbackBody, where: str) -> tuple[str, str]:
        """(name, canonical content). Raises 400 unknown_metric, 422 for values."""
        field = _in(where, "correction" if body.correction is not None else "expected")
        correction = _correction(body.correction if body.correction is not None else body.expected, field)
        comment = body.comment if body.comment is not None else body.rationale
        name = body.metric() or (DEMONSTRATION if correction else COMMENT if comment else None)
        if name is None:
            raise ApiError(
                422, "name: the metric's name is missing", code="missing", param=_in(where, "name")
            )
        if name not in self._metrics and name not in RESERVED:
            known = ", ".join([*self._metrics, *RESERVED])
            message = f"no metric {name!r} in the agent file; there are {known}"
            raise ApiError(400, message, code="unknown_metric", param=_in(where, "name"))
        field = "value" if body.value is not None or body.score is None else "score"
        given = body.value if field == "value" else body.score
        value, score = self._scored(name, given, _in(where, field), default=comment or correction)
        if name == DEMONSTRATION and not correction:
            correction = value if isinstance(value, str) else None
        content = {
            "value": value,
            "score": score,
            "comment": comment,
            "correction": correction,
            "source": {
                "type": body.source.type if body.source else "human",
                "id": body.source.id if body.source else None,
            },
            "metadata": body.metadata or {},
        }
        return name, canonical(content).decode()

    def _scored(
        self, name: str, value: Any, field: str, *, default: str | None = None
    ) -> tuple[bool | float | str | None, float | None]:
        if name in RESERVED:
            value = default if value is None else value
            if not isinstance(value, str) or not value or len(value) > 8192:
                raise ApiError(422, f"{field}: must be text", code="invalid_value", param=field)
            return value, None
        try:
            score = score_of(self._metrics[name], value)
        except BadValue as error:
            raise ApiError(422, f"{field}: {error}", code="invalid_value", param=field) from error
        return (value if isinstance(value, bool) else float(value)), score

    def _window_ms(self, name: str) -> float:
        return self._metrics.get(name, Metric()).window * 1000

    def _send(self, conn: Connection, row: "_Row", *, op: Any) -> None:
        content = json.loads(row.content)
        message = Feedback(
            id=row.id,
            revision=row.revision,
            op=op,
            agent=self._agent,
            episode_id=row.episode_id,
            response_id=row.response_id,
            tool_call_id=row.tool_call_id,
            name=row.name,
            value=content["value"],
            score=content["score"],
            comment=content["comment"],
            correction=content["correction"],
            key_owner=row.key_owner,
            rater=row.rater,
            source=Source(**content["source"]),
            given_at=row.given_at,
            received_at=row.updated_at,
        )
        self._outbox.put(conn, FEEDBACK, row.episode_id, message.to_bytes(), row.updated_at)


def forget_replies(conn: Connection, *, before: int) -> None:
    """Idempotency keys of old requests."""
    conn.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.at < before))


class _Row:
    """A row before it is one."""

    def __init__(self, columns: Any) -> None:
        self.id: str = columns["id"]
        self.revision: int = columns["revision"]
        self.episode_id: str = columns["episode_id"]
        self.response_id: str | None = columns["response_id"]
        self.tool_call_id: str | None = columns["tool_call_id"]
        self.name: str = columns["name"]
        self.content: str = columns["content"]
        self.key_owner: str = columns["key_owner"]
        self.rater: str = columns["rater"]
        self.status: str = columns["status"]
        self.given_at: int = columns["given_at"]
        self.created_at: int = columns["created_at"]
        self.updated_at: int = columns["updated_at"]


def _rater(key: Key, body: FeedbackBody, target: Target) -> str:
    """The person the key vouches for, else the one who chatted, else the episode (design 13, Raters)."""
    named = body.source.id if body.source else None
    if named and key.may("end-users"):
        return person(key.owner, named)
    return target.user or person(key.owner, f"episode:{target.episode_id}")


def _find(conn: Connection, owner: str, natural: str, wanted_id: str | None, where: str) -> Row[Any] | None:
    """The row that this feedback changes."""
    if wanted_id is not None:
        condition = (RATINGS.c.key_owner == owner, RATINGS.c.id == wanted_id)
        row = conn.execute(select(RATINGS).where(*condition)).one_or_none()
        if row is not None and row.natural_key != natural:
            message = "id: already used for another target, name or rater"
            raise ApiError(422, message, code="id_reused", param=_in(where, "id"))
        if row is not None:
            return row
    condition = (RATINGS.c.key_owner == owner, RATINGS.c.natural_key == natural)
    return conn.execute(select(RATINGS).where(*condition)).one_or_none()


def _write(conn: Connection, row: dict[str, Any], *, exists: bool) -> None:
    if not exists:
        conn.execute(insert(RATINGS).values(**row))
        return
    where = (RATINGS.c.key_owner == row["key_owner"], RATINGS.c.id == row["id"])
    conn.execute(update(RATINGS).where(*where).values(**row))


def _shown(row: Any, target: Target | None) -> dict[str, Any]:
    """The reply's object."""
    content = json.loads(row.content)
    shown = {
        "id": row.id,
        "object": "feedback",
        "status": row.status,
        "revision": row.revision,
        "episode_id": row.episode_id,
        "response_id": row.response_id,
        "tool_call_id": row.tool_call_id,
        "name": row.name,
        **{field: content[field] for field in ("value", "score", "comment", "correction")},
        "trainable": row.status == "accepted",
        "reason": "window" if row.status == "late" else None,
        "created_at": _iso(row.created_at),
        "updated_at": _iso(row.updated_at),
    }
    if target is not None:
        shown |= {"adapter_version": target.version, "canary_id": target.canary_id, "arm": target.arm}
    return shown


def _correction(value: Any, where: str) -> str | None:
    """Text, or an assistant message."""
    if isinstance(value, dict):
        value = value.get("content")
        if not isinstance(value, str):
            raise ApiError(422, f"{where}: needs a text `content`", code="invalid_value", param=where)
    if value is None or (isinstance(value, str) and 0 < len(value) <= 32768):
        return value
    raise ApiError(422, f"{where}: must be text", code="invalid_value", param=where)


def _given_at(text: str | None, now: int, where: str) -> int:
    """When it was given; nobody rates in the future."""
    if text is None:
        return now
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, min(now, int(moment.timestamp() * 1000)))
    except (ValueError, OverflowError) as error:
        field = _in(where, "timestamp")
        raise ApiError(422, f"{field}: must be ISO 8601", code="invalid_value", param=field) from error


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _in(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field
