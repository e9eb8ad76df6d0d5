"""What is left of an interaction's limits while it runs."""

import time
from dataclasses import dataclass, field

from feedback.agent_file import Limits
from tools.parse import Call


@dataclass(slots=True)
class Budget:
    """Counts down; `hit` once anything ran out, and then one last round is left."""

    rounds: int
    calls: int
    identical: int
    deadline: float  # monotonic
    tokens: int | None = None  # that may still be sampled, where the client says so
    hit: bool = False
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: Limits, *, tokens: int | None) -> "Budget":
        """The whole of it, from now on."""
        deadline = time.monotonic() + limits.wall_s
        return cls(limits.rounds, limits.tool_calls, limits.identical_calls, deadline, tokens)

    def refuse(self, call: Call) -> str | None:
        """Why this call is not run, in words for the model; None counts it as run."""
        if self.calls <= 0:
            return "error: no tool calls are left; answer now"
        if time.monotonic() >= self.deadline:
            return "error: no time is left; answer now"
        key = (call.name, call.arguments)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] > self.identical:
            return "error: this call was already made; use its result"
        self.calls -= 1
        return None

    def end_round(self) -> None:
        """After the tools of a turn."""
        self.rounds -= 1
        if self.rounds <= 0 or self.calls <= 0 or time.monotonic() >= self.deadline:
            self.hit = True

    def take(self, sampled: int) -> None:
        """Tokens that a turn has used."""
        if self.tokens is not None:
            self.tokens -= sampled

    def seconds_left(self) -> float:
        """For one tool; never nothing, so that its timeout is its own error."""
        return max(0.1, self.deadline - time.monotonic())

    def out_of_tokens(self) -> bool:
        """Whether not even a last round may be sampled."""
        return self.tokens is not None and self.tokens <= 0
