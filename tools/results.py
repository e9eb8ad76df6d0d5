"""What a tool returned -> the text that the model sees.

Invariant: every value has one defined text, at most the token limit long; what was removed is said.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

CHARS_A_TOKEN = 16  # no more characters than this a token are looked at: a bound on the work, not an estimate


def as_text(value: Any) -> str:
    """Never a repr: that would show addresses and internals."""
    match value:
        case str():
            return whole(value)
        case None:
            return "(no result)"
        case bytes():
            return _from_bytes(value)
        case float() if not math.isfinite(value):
            return f"(not a number: {value})"
        case BaseModel():
            return whole(value.model_dump_json())
    try:
        return whole(json.dumps(value, ensure_ascii=False, default=_named))
    except (TypeError, ValueError, RecursionError):
        return _named(value)


def whole(text: str) -> str:
    """A lone surrogate cannot be encoded by anybody: it becomes U+FFFD here, once."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def capped(text: str, limit: int, *, count_tokens: Callable[[str], int]) -> tuple[str, int]:
    """(text of at most `limit` tokens, tokens removed). Cut at a character, with a notice of how much is gone."""
    head = text[: limit * CHARS_A_TOKEN]
    size = count_tokens(head)
    if size <= limit and len(head) == len(text):
        return text, 0
    low, high = 0, len(head)
    while low < high:  # the most characters that fit with their notice
        middle = (low + high + 1) // 2
        fits = count_tokens(_cut(text, middle)) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    kept = _cut(text, low)
    if count_tokens(kept) > limit:
        kept = ""  # not even the notice fits
    total = size if len(head) == len(text) else round(size * len(text) / max(1, len(head)))
    return kept, max(1, total - count_tokens(text[:low]))


def _cut(text: str, keep: int) -> str:
    return f"{text[:keep]} [{len(text) - keep} characters cut]"


def _from_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"(binary data, {len(value)} bytes)"


def _named(value: object) -> str:
    return f"(an object of type {type(value).__name__})"
