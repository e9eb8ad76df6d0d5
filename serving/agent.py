"""The agent loop: render, sample, parse, run tools, repeat. No HTTP in it; streaming and not read the same events.

Earlier ids are extended and never rendered again; a limit ends with one last round, never with an empty answer.
"""

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from uuid_utils import uuid4

from feedback.agent_file import Limits
from feedback.schemas import Status, ToolCall, ToolOutcome
from serving.engine import EngineBroken, Sampled
from serving.transcript import SEPARATOR, Draft, Transcript
from serving.visible import VisibleText
from tools.parse import Call, Dialect, Signatures, parse_turn
from tools.template import Template
from tools.toolbox import Toolbox

NOTHING_SAID = "I could not finish this request. Please try again or put it differently."
_DIALECTS: dict[str, Dialect] = {"desk": "desk", "hermes": "hermes"}
_SAMPLE_GRACE_S = 30.0  # a turn that is being sampled may outlast `wall_s` by this much


class Sampler(Protocol):
    """Samples with one version: a lease, or a double."""

    def sample(
        self, prompt_ids: Sequence[int], *, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]: ...


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A server-side tool runs now."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """It answered."""

    outcome: ToolOutcome


Event = TextDelta | ToolStarted | ToolEnded


@dataclass(frozen=True, slots=True)
class Ask:
    """One interaction: where it starts and what bounds it."""

    episode_id: str
    version: str
    prompt_ids: list[int]
    params: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    client_tools: Signatures = field(default_factory=dict)


@dataclass(slots=True)
class _Budget:
    """What is left of the limits."""

    rounds: int
    calls: int
    deadline: float
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    hit: bool = False


class Agent:
    """One agent file's loop."""

    def __init__(
        self,
        template: Template,
        toolbox: Toolbox,
        *,
        limits: Limits,
        signatures: Signatures,
        hidden: Sequence[str],
        max_context: int,
        max_completion: int,
    ) -> None:
        self.template, self.toolbox = template, toolbox
        self._limits, self._signatures, self._hidden = limits, dict(signatures), tuple(hidden)
        self._max_context, self._max_completion = max_context, max_completion

    async def run(self, ask: Ask, sampler: Sampler, transcript: Transcript) -> AsyncGenerator[Event, None]:
        """Do the interaction; `transcript` holds the truth at every moment. Raises EngineError."""
        budget = _Budget(self._limits.rounds, self._limits.tool_calls, time.monotonic() + self._limits.wall_s)
        ids = ask.prompt_ids
        while True:
            draft = Draft(ask.version, ids)
            transcript.drafts.append(draft)
            async with aclosing(self._turn(ask, sampler, transcript, draft, budget)) as deltas:
                async for delta in deltas:
                    yield delta
            calls = self._calls(ask, draft)
            if not calls:
                break
            handed = _of_client(ask, draft, calls)
            if budget.hit and not handed:
                break
            async for event in self._run_tools(ask, draft, calls, budget):
                yield event
            if handed:
                transcript.client_calls = handed
                break
            ids = draft.prompt_ids + draft.token_ids + self._closing(draft) + self.template.open_turn()
            if len(ids) >= self._max_context:
                budget.hit = True
                break
        for last in self._end(transcript, draft, budget):
            yield last

    async def _turn(
        self, ask: Ask, sampler: Sampler, transcript: Transcript, draft: Draft, budget: _Budget
    ) -> AsyncGenerator[Event, None]:
        """Sample one turn into the draft."""
        visible = VisibleText(self.template, self._hidden, ask.stops)
        room = self._max_context - len(draft.prompt_ids)
        wanted = min(self._max_completion, ask.max_tokens or self._max_completion, max(1, room))
        params = {**ask.params, "max_tokens": wanted, "stop_token_ids": list(self.template.stop_ids)}
        limit = budget.deadline + _SAMPLE_GRACE_S
        stream = sampler.sample(draft.prompt_ids, params=params)
        try:
            async for sampled in stream:
                transcript.first_token_at = transcript.first_token_at or time.monotonic()
                draft.token_ids += sampled.token_ids
                draft.logprobs += sampled.logprobs
                if sampled.finish is not None:
                    draft.stop_reason = _stop_reason(sampled.finish)
                if piece := visible.feed(sampled.token_ids):
                    yield self._deliver(transcript, draft, piece)
                if visible.stopped:
                    draft.stop_reason = "stop"
                    break
                if sampled.finish is None and time.monotonic() > limit:
                    draft.stop_reason, budget.hit = "length", True
                    break
        finally:
            draft.raw_text = self.template.decode(draft.token_ids)
            await stream.aclose()
        if piece := visible.finish():
            yield self._deliver(transcript, draft, piece)

    def _deliver(self, transcript: Transcript, draft: Draft, piece: str) -> TextDelta:
        """Note the text as delivered: the reader sends it before it asks for more."""
        break_ = SEPARATOR if transcript.delivered and not draft.shown_text else ""
        draft.shown_text += piece
        transcript.delivered += break_ + piece
        return TextDelta(break_ + piece)

    def _calls(self, ask: Ask, draft: Draft) -> list[Call]:
        """Parse the turn, and note its calls under ids of their own."""
        parsed = parse_turn(
            draft.raw_text, _DIALECTS[self.template.name], {**self._signatures, **ask.client_tools}
        )
        draft.tool_calls = [
            ToolCall(
                id=f"call_{uuid4().hex[:24]}", name=call.name, arguments=call.arguments, error=call.error
            )
            for call in parsed.calls
        ]
        return list(parsed.calls)

    async def _run_tools(
        self, ask: Ask, draft: Draft, calls: list[Call], budget: _Budget
    ) -> AsyncGenerator[Event, None]:
        """Every call gets exactly one result, in order; over a limit the result says so."""
        budget.rounds -= 1
        for noted, call in zip(draft.tool_calls, calls, strict=True):
            if _is_for_client(ask, call):
                continue
            yield ToolStarted(call.name)
            outcome = await self._run_one(ask, noted, call, budget)
            draft.tool_results.append(outcome)
            yield ToolEnded(outcome)
        if budget.rounds <= 0 or budget.calls <= 0 or time.monotonic() >= budget.deadline:
            budget.hit = True

    async def _run_one(self, ask: Ask, noted: ToolCall, call: Call, budget: _Budget) -> ToolOutcome:
        if call.name in ask.client_tools:
            problem = f"error: {call.error or 'the arguments cannot be read'}"
            return ToolOutcome(call_id=noted.id, name=call.name, content=problem, fault="malformed")
        refused = self._over_limit(call, budget)
        if refused is not None:
            return ToolOutcome(call_id=noted.id, name=call.name or "invalid", content=refused, fault="limit")
        left = max(0.1, budget.deadline - time.monotonic())
        result = await self.toolbox.run(call, episode_id=ask.episode_id, timeout_s=left)
        return ToolOutcome(
            call_id=noted.id,
            name=result.name,
            content=result.content,
            fault=result.fault,
            removed_tokens=result.truncated,
        )

    def _over_limit(self, call: Call, budget: _Budget) -> str | None:
        """Why this call is not run; counts it otherwise."""
        if budget.calls <= 0:
            return "error: no tool calls are left; answer now"
        if time.monotonic() >= budget.deadline:
            return "error: no time is left; answer now"
        key = (call.name, call.arguments)
        budget.seen[key] = budget.seen.get(key, 0) + 1
        if budget.seen[key] > self._limits.identical_calls:
            return "error: this call was already made; use its result"
        budget.calls -= 1
        return None

    def _closing(self, draft: Draft) -> list[int]:
        """What follows the sampled ids: the end of the turn, and the results of its calls."""
        ids = list(self.template.close_turn(draft.token_ids))
        for outcome in draft.tool_results:
            ids += self.template.tool_result(outcome.name, outcome.content)
        return ids

    def _end(self, transcript: Transcript, draft: Draft, budget: _Budget) -> list[TextDelta]:
        """How it ended; an answer with nothing to see becomes a fixed sentence."""
        transcript.tail = self._closing(draft)
        if transcript.client_calls:
            transcript.status, transcript.finish = Status.COMPLETED, "tool_calls"
            return []
        limited = budget.hit and (bool(draft.tool_calls) or not draft.token_ids)
        transcript.status = Status.LIMITED if limited else Status.COMPLETED
        if budget.hit:
            transcript.flags.append("limit_hit")
        transcript.finish = "length" if limited or draft.stop_reason == "length" else "stop"
        if transcript.delivered:
            return []
        transcript.delivered = NOTHING_SAID
        return [TextDelta(NOTHING_SAID)]


def _stop_reason(finish: str) -> Any:
    if finish in ("stop", "length"):
        return finish
    raise EngineBroken(f"the engine ended the turn with {finish[:40]!r}")


def _is_for_client(ask: Ask, call: Call) -> bool:
    """A call that the client runs; one that cannot be read is answered here."""
    return call.name in ask.client_tools and call.error is None and call.arguments_json is not None


def _of_client(ask: Ask, draft: Draft, calls: list[Call]) -> list[ToolCall]:
    """The calls that end the interaction, with arguments in JSON as clients expect them."""
    return [
        noted.model_copy(update={"arguments": json.dumps(call.arguments_json, ensure_ascii=False)})
        for noted, call in zip(draft.tool_calls, calls, strict=True)
        if _is_for_client(ask, call)
    ]
