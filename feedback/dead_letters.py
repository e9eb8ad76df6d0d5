"""What becomes of a record that nobody can read: a dead letter that always fits the bus, with where it came from.

A poison record must not stop its reader a second time, so value, reason and key are cut by a stated rule.
"""

import base64

from feedback.bus import Record
from feedback.schemas import DeadLetter

VALUE_BYTES = 700_000
"""Of a value that nobody could read, so much is kept: as base64 it still fits the bus."""

_CHARACTERS = 1_000
"""Of a reason and of a key: either may quote the record."""


def dead_letter(record: Record, reason: str, *, at: int) -> DeadLetter:
    """The record as people will find it; `at` (ms) is when it was set aside."""
    value, reason = record.value, reason[:_CHARACTERS]
    if value is not None and len(value) > VALUE_BYTES:
        value, reason = value[:VALUE_BYTES], f"{reason} (first {VALUE_BYTES} of {len(value)} bytes)"
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason,
        value_base64=None if value is None else base64.b64encode(value).decode(),
        at=at,
    )


def letter_key(record: Record) -> str:
    """The source's key, as every database stores it (PostgreSQL: no NUL) and every broker takes it."""
    return (record.key or "").replace("\0", "")[:_CHARACTERS]
