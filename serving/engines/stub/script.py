"""What a stub engine is told to do: scripted replies with delays, failures and lies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Lie = Literal[
    "infinite_top",
    "no_ids",
    "short_logprobs",
    "null_logprob",
    "nan_logprob",
    "other_model",
    "other_prompt",
    "abort",
]
END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Reply:
    """What one completion does. `text` may hold control tokens; the end marker is added unless `open`."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    chunk: int = 1  # ids per event
    first_s: float = 0.0  # before the first event
    each_s: float = 0.0  # before every event
    status: int | None = None  # refuse with this status instead
    break_after: int | None = None  # events before the connection is cut
    stall_after: int | None = None  # events before it hangs
    error_after: int | None = None  # events before an error event
    lie: Lie | None = None
    open: bool = False
    cuts: tuple[int, ...] = ()  # byte offsets at which the body is written in pieces


Script = Callable[[str, list[int]], Reply]


def cycle(replies: Sequence[Reply]) -> Script:
    """One after the other, then again from the first."""
    state = {"next": 0}

    def script(model: str, prompt: list[int]) -> Reply:
        reply = replies[state["next"] % len(replies)]
        state["next"] += 1
        return reply

    return script
