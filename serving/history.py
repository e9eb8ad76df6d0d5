"""The history a client sends back, in one form: what was said, a hash of every prefix, and its rendering in ids. Pure.

Two histories have the same thread exactly when the same key owner and person saw the same conversation.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.bodies import ChatMessage
from tools.parse import Call
from tools.template import Template

BROKEN_CALL = "error: the arguments of this call are not one JSON object\n"
"""Before the result of a call that is shown with none, so that the model knows why."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message; `role` is system, user, assistant or tool."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()  # (name, argument text) of an assistant's calls
    name: str = ""  # of the tool whose result this is


def read_messages(messages: Sequence[ChatMessage]) -> list[Said]:
    """Messages in one form; a tool result learns its tool's name from the call it answers, and what was wrong with it."""
    names: dict[str, str] = {}
    broken: set[str] = set()
    found = []
    for message in messages:
        calls = message.tool_calls or []
        names.update({call.id: call.function.name for call in calls})
        broken.update(call.id for call in calls if read_arguments(call.function.arguments) is None)
        role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
        name = names.get(message.tool_call_id or "", message.name or "tool") if role == "tool" else ""
        wanted = tuple((call.function.name, call.function.arguments) for call in calls)
        told = BROKEN_CALL if role == "tool" and message.tool_call_id in broken else ""
        found.append(Said(role, told + message.text(), wanted, name))
    return found


def read_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None where they are not one JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def broken_calls(said: Sequence[Said]) -> list[tuple[str, int]]:
    """(tool, characters of its arguments) of the calls whose arguments cannot be read, for the log."""
    calls = [call for message in said for call in message.calls]
    return [(name, len(arguments)) for name, arguments in calls if read_arguments(arguments) is None]


def answer(text: str, calls: Sequence[tuple[str, str]] = ()) -> Said:
    """Our own answer, as clients send it back."""
    return Said("assistant", text, tuple(calls))


def root(*parts: str) -> str:
    """The thread of nothing said yet: key owner, person, agent and tools."""
    return _hash(json.dumps(parts))


def threads(start: str, said: Sequence[Said]) -> list[str]:
    """The thread after each message."""
    found = []
    for message in said:
        start = follow(start, message)
        found.append(start)
    return found


def follow(thread: str, said: Said) -> str:
    """The thread after one more message. Clients trim white space at the ends: that is no edit."""
    return _hash(json.dumps([thread, said.role, said.text.strip(), said.calls, said.name]))


def newest_user_text(said: Sequence[Said]) -> str:
    """What the implicit signal reads."""
    return next((message.text for message in reversed(said) if message.role == "user"), "")


def render(template: Template, said: Sequence[Said]) -> list[int]:
    """Ids of whole messages, each as literal text in its role."""
    ids: list[int] = []
    for message in said:
        match message.role:
            case "system":
                ids += template.system(message.text)
            case "user":
                ids += template.user(message.text)
            case "tool":
                ids += template.tool_result(message.name, message.text)
            case _:
                ids += template.assistant(message.text, [_call(*call) for call in message.calls])
    return ids


def _call(name: str, arguments: str) -> Call:
    """A past call; arguments that are not an object are shown as an empty one, and the record keeps the raw text."""
    return Call(name, arguments, read_arguments(arguments) or {})


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
