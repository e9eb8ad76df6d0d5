"""What one interaction really was: its turns in exact ids, what was delivered, how it ended. Written by the agent loop, read by the recorder.

Whatever happens (a vanished client, a broken engine), what is here is what happened up to that moment.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from feedback.schemas import Status, ToolCall, ToolOutcome, Turn, Usage, turn_flaw
from serving.engines.engine import LOWEST_LOGPROB
from serving.loop.logprobs import TokenScore

StopReason = Literal["stop", "length", "abort", "error"]
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class Draft:
    """A turn while it is made."""

    version: str
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_text: str = ""
    shown_text: str = ""
    stop_reason: StopReason = "abort"
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_results: list[ToolOutcome] = field(default_factory=list)
    forced: bool = (
        False  # the body of a call that had to be made: `prompt_ids` end with the marker that opens it
    )

    def turn(self) -> Turn:
        """The message; a turn that is not exact says so."""
        ids, logprobs = tuple(self.token_ids), tuple(self.logprobs)
        flaw = turn_flaw(ids, logprobs, self.raw_text, self.shown_text)
        return Turn(
            adapter_version=self.version,
            prompt_ids=tuple(self.prompt_ids),
            token_ids=ids,
            logprobs=tuple(value if math.isfinite(value) else LOWEST_LOGPROB for value in logprobs),
            raw_text=self.raw_text,
            shown_text=self.shown_text,
            stop_reason=self.stop_reason,
            tool_calls=tuple(self.tool_calls),
            tool_results=tuple(self.tool_results),
            flaw=flaw,
        )


@dataclass(slots=True)
class Transcript:
    """Grows with the interaction."""

    drafts: list[Draft] = field(default_factory=list)
    delivered: str = ""
    client_calls: list[ToolCall] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)  # of what was delivered, where asked for
    status: Status = Status.ABORTED
    finish: Finish = "stop"
    flags: list[str] = field(default_factory=list)
    first_token_at: float | None = None
    tail: list[int] = field(
        default_factory=list
    )  # what closes the last turn, results of its own calls included

    @property
    def extendable(self) -> bool:
        """Whether its ids may be extended: it ended by itself, and all that was sampled to be shown was delivered."""
        return self.status in (Status.COMPLETED, Status.LIMITED)

    def keep_delivered(self, characters: int) -> None:
        """Only this much of the text reached the client: what it did not see is not recorded as seen."""
        self.delivered = self.delivered[:characters]
        left = characters
        first = True
        for draft in self.drafts:
            if not draft.shown_text:
                continue
            left -= 0 if first else len(SEPARATOR)
            first = False
            draft.shown_text = draft.shown_text[: max(0, left)]
            left -= len(draft.shown_text)

    def ids(self) -> list[int]:
        """The whole episode in ids, its last turn closed: the next message may follow."""
        last = self.drafts[-1]
        return last.prompt_ids + last.token_ids + self.tail

    def usage(self) -> Usage:
        """Tokens of all turns."""
        return Usage(
            prompt_tokens=sum(len(draft.prompt_ids) for draft in self.drafts),
            completion_tokens=sum(len(draft.token_ids) for draft in self.drafts),
        )

    def turns(self) -> tuple[Turn, ...]:
        """The turns in which something was sampled."""
        return tuple(draft.turn() for draft in self.drafts if draft.token_ids)


SEPARATOR = "\n\n"
"""Between the visible parts of two turns of one interaction."""
