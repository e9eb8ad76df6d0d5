"""A piece of feedback as replies show it. Pure."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from serving.feedback.targets import Target

_ROW = ("id", "status", "revision", "episode_id", "response_id", "tool_call_id", "name")
_CONTENT = ("value", "score", "comment", "correction", "comparison", "source", "metadata")
_BROWSER = ("id", "object", "status", "revision", "name", "change")


def shown(row: Mapping[Any, Any], target: Target | None) -> dict[str, Any]:
    """The object; with its target it also says which version was rated."""
    content, counts = json.loads(row["content"]), row["status"] == "accepted"
    comparison = content.get("comparison")
    reason = None if counts else "window"
    if comparison is not None and not comparison["same_question"]:
        reason = reason or "different_questions"
    value = {
        "object": "feedback",
        **{field: row[field] for field in _ROW},
        **{field: content.get(field) for field in _CONTENT},
        "trainable": reason is None,
        "reason": reason,
        "created_at": _iso(row["created_at"]),
        "updated_at": _iso(row["updated_at"]),
    }
    if target is not None:
        value |= {"adapter_version": target.version, "canary_id": target.canary_id, "arm": target.arm}
    return value


def shown_to_browser(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a holder of a token learns: that it is stored, and nothing about what was rated."""
    return {field: value[field] for field in _BROWSER}


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
