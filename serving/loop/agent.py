"""The agent loop: render, sample, parse, run tools, repeat. No HTTP in it; streaming and not read the same events.

Earlier ids are extended and never rendered again; a limit ends with one last round, never with an empty answer.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from uuid_utils import uuid4

from feedback.agent_file import Limits
from feedback.schemas import Status, ToolCall, ToolOutcome
from serving.loop.ask import Ask, Event, Sampler, TextDelta, ToolEnded, ToolStarted
from serving.loop.budget import Budget
from serving.loop.transcript import Draft, Transcript
from serving.loop.turn import Kind, Turns
from tools.parse import Call, Dialect, Signatures, parse_turn
from tools.template import Template
from tools.toolbox import Toolbox

NOTHING_SAID = "I could not finish this request. Please try again or put it differently."
_DIALECTS: dict[str, Dialect] = {"desk": "desk", "hermes": "hermes"}


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
        self._limits, self._signatures, self._max_context = limits, dict(signatures), max_context
        self._turns = Turns(template, hidden, max_context=max_context, max_completion=max_completion)

    async def run(self, ask: Ask, sampler: Sampler, transcript: Transcript) -> AsyncGenerator[Event, None]:
        """Do the interaction; `transcript` holds the truth at every moment. Raises EngineError."""
        budget = Budget.of(self._limits, tokens=ask.max_tokens)
        ids = ask.prompt_ids
        while True:
            async with aclosing(self._turn(ask, sampler, transcript, ids, budget)) as deltas:
                async for delta in deltas:
                    yield delta
            draft = transcript.drafts[-1]
            calls = self._calls(ask, draft)
            if not calls:
                break
            handed = _of_client(ask, draft, calls)
            if budget.hit and not handed:
                break
            taken = {call.id for call in handed}
            async for event in self._run_tools(ask, draft, calls, taken=taken, budget=budget):
                yield event
            if handed:
                transcript.client_calls = handed
                break
            ids = draft.prompt_ids + draft.token_ids + self._closing(draft) + self.template.open_turn()
            if len(ids) >= self._max_context or budget.out_of_tokens():
                budget.hit = True
                break
        for last in self._end(transcript, draft, budget):
            yield last

    async def _turn(
        self, ask: Ask, sampler: Sampler, transcript: Transcript, ids: list[int], budget: Budget
    ) -> AsyncGenerator[TextDelta, None]:
        """Sample the next turn; it is the transcript's last draft afterwards."""
        kind: Kind = "free"
        if ask.choice.forced and not budget.hit:
            kind, ids = "call", ids + self.template.open_call()
        draft = Draft(ask.version, ids, forced=kind == "call")
        transcript.drafts.append(draft)
        if kind == "free" and ask.answer_params is not None:
            if self._may_call(ask, budget) and await self._turns.wants_tool(
                ask, sampler, transcript, draft, budget
            ):
                budget.take(len(draft.token_ids))
                return
            # The peek went into an answer, which a grammar has to bind from its first token on.
            draft = transcript.drafts[-1] = Draft(ask.version, ids)
            kind = "answer"
        turn = self._turns.sample(ask, sampler, transcript, draft, kind=kind, budget=budget)
        async with aclosing(turn) as deltas:
            async for delta in deltas:
                yield delta
        budget.take(len(draft.token_ids))
        if draft.forced:
            self._cut_end(draft)

    def _may_call(self, ask: Ask, budget: Budget) -> bool:
        """Whether a call of this turn could be run or handed over."""
        return not budget.hit and bool(self._signatures or ask.client_tools)

    def _cut_end(self, draft: Draft) -> None:
        """The end that a call's grammar leaves no choice about comes after the call's closing marker."""
        while draft.token_ids and draft.token_ids[-1] in self.template.stop_ids:
            draft.token_ids.pop()
            del draft.logprobs[len(draft.token_ids) :]
        draft.raw_text = self.template.decode(draft.token_ids)

    def _calls(self, ask: Ask, draft: Draft) -> list[Call]:
        """Parse the turn, and note its calls under ids of their own."""
        text = draft.raw_text
        if draft.forced:
            opening, closing = self.template.open_call(), self.template.close_call()
            text = self.template.decode(opening + draft.token_ids + closing)
        parsed = parse_turn(text, _DIALECTS[self.template.name], {**self._signatures, **ask.client_tools})
        draft.tool_calls = [
            ToolCall(
                id=f"call_{uuid4().hex[:24]}", name=call.name, arguments=call.arguments, error=call.error
            )
            for call in parsed.calls
        ]
        return list(parsed.calls)

    async def _run_tools(
        self, ask: Ask, draft: Draft, calls: list[Call], *, taken: set[str], budget: Budget
    ) -> AsyncGenerator[Event, None]:
        """Every call that the client does not take gets exactly one result, in order; over a limit it says so."""
        for noted, call in zip(draft.tool_calls, calls, strict=True):
            if noted.id in taken:
                continue
            yield ToolStarted(call.name)
            outcome = await self._run_one(ask, noted, call, budget)
            draft.tool_results.append(outcome)
            yield ToolEnded(outcome)
        budget.end_round()

    async def _run_one(self, ask: Ask, noted: ToolCall, call: Call, budget: Budget) -> ToolOutcome:
        if call.name in ask.client_tools:
            return _not_handed(ask, noted, call)
        refused = budget.refuse(call)
        if refused is not None:
            return ToolOutcome(call_id=noted.id, name=call.name or "invalid", content=refused, fault="limit")
        result = await self.toolbox.run(call, episode_id=ask.episode_id, timeout_s=budget.seconds_left())
        return ToolOutcome(
            call_id=noted.id,
            name=result.name,
            content=result.content,
            fault=result.fault,
            removed_tokens=result.truncated,
        )

    def _closing(self, draft: Draft) -> list[int]:
        """What follows the sampled ids: the end of the turn, and the results of its calls."""
        ids = self.template.close_call() if draft.forced else []
        ids += self.template.close_turn(draft.token_ids)
        for outcome in draft.tool_results:
            ids += self.template.tool_result(outcome.name, outcome.content)
        return ids

    def _end(self, transcript: Transcript, draft: Draft, budget: Budget) -> list[TextDelta]:
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


def _not_handed(ask: Ask, noted: ToolCall, call: Call) -> ToolOutcome:
    """A call of a client's tool that the client does not get, answered here so that the model can go on."""
    if call.error is not None or call.arguments_json is None:
        problem = f"error: {call.error or 'the arguments cannot be read'}"
        return ToolOutcome(call_id=noted.id, name=call.name, content=problem, fault="malformed")
    problem = "error: this tool may not be called now; answer without it"
    if ask.choice.may_call(call.name):
        problem = "error: one call at a time; this one was not made"
    return ToolOutcome(call_id=noted.id, name=call.name, content=problem, fault="limit")


def _of_client(ask: Ask, draft: Draft, calls: list[Call]) -> list[ToolCall]:
    """The calls that end the interaction, with arguments in JSON as clients expect them."""
    found = [
        noted.model_copy(update={"arguments": json.dumps(call.arguments_json, ensure_ascii=False)})
        for noted, call in zip(draft.tool_calls, calls, strict=True)
        if _is_for_client(ask, call)
    ]
    return found if ask.parallel else found[:1]


def _is_for_client(ask: Ask, call: Call) -> bool:
    """A call that the client runs; one that cannot be read is answered here."""
    known = call.name in ask.client_tools and ask.choice.may_call(call.name)
    return known and call.error is None and call.arguments_json is not None
