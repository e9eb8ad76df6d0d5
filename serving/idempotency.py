"""`Idempotency-Key`: the same key with the same body gets the same reply, byte for byte; with another body it is refused.

A row is written in the transaction of what it replays, so a reply is on record exactly if its work is.
"""

import hashlib

from sqlalchemy import Connection, delete, insert, select

from serving.errors import ApiError, field_error
from serving.tables import IDEMPOTENCY

KEPT_MS = 24 * 3600_000  # how long a key is remembered at least
_LONGEST = 255
_HEADER = "Idempotency-Key"


def read_key(header: str | None) -> str | None:
    """The key of the header. Raises 422 for one that is no key."""
    if header is not None and not 0 < len(header) <= _LONGEST:
        raise field_error(_HEADER, f"1 to {_LONGEST} characters")
    return header


def replay(conn: Connection, owner: str, key: str, body: bytes) -> bytes | None:
    """The stored reply; None at the first time. Raises 422 for another body."""
    where = (IDEMPOTENCY.c.key_owner == owner, IDEMPOTENCY.c.key == key)
    known = conn.execute(select(IDEMPOTENCY).where(*where)).one_or_none()
    if known is None:
        return None
    if known.body_hash != _digest(body):
        message = f"this {_HEADER} was used with another body"
        raise ApiError(422, message, code="idempotency_key_reused", param=_HEADER)
    return bytes(known.reply.encode())


def remember(conn: Connection, owner: str, key: str, body: bytes, *, reply: bytes, at: int) -> None:
    """Keep the reply for the next time."""
    row = {"key_owner": owner, "key": key, "body_hash": _digest(body), "status": 202}
    conn.execute(insert(IDEMPOTENCY).values(**row, reply=reply.decode(), at=at))


def forget(conn: Connection, *, before: int) -> None:
    """Drop the keys of old requests."""
    conn.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.at < before))


def forget_episode(conn: Connection, episode_id: str) -> None:
    """Drop replies that show what was said about a withdrawn episode."""
    conn.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.reply.contains(episode_id, autoescape=True)))


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
