"""Samples one turn into its draft and says what of it can be shown.

Four kinds: *free*; *answer*, bound to a grammar and shown; *call*, the body of a call that must be made, never shown;
*peek*, a free turn that ends at its first visible character, because only the calls in it are wanted.
"""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from serving.engines.engine import EngineBroken, Sampled
from serving.loop.ask import Ask, Sampler, TextDelta
from serving.loop.budget import Budget
from serving.loop.logprobs import ShownTokens
from serving.loop.transcript import SEPARATOR, Draft, StopReason, Transcript
from serving.loop.visible import VisibleText
from tools.parse import OPEN
from tools.template import Template

Kind = Literal["free", "answer", "call", "peek"]
_GRACE_S = 30.0  # a turn that is being sampled may outlast `wall_s` by this much


class Turns:
    """One agent file's way to sample."""

    def __init__(
        self, template: Template, hidden: Sequence[str], *, max_context: int, max_completion: int
    ) -> None:
        self._template, self._hidden = template, tuple(hidden)
        self._max_context, self._max_completion = max_context, max_completion

    async def sample(
        self, ask: Ask, sampler: Sampler, transcript: Transcript, draft: Draft, *, kind: Kind, budget: Budget
    ) -> AsyncGenerator[TextDelta, None]:
        """Sample until the turn ends; `draft` holds the truth at every moment. Raises EngineError."""
        visible = VisibleText(self._template, self._hidden, ask.stops)
        tokens = ShownTokens(self._template) if ask.top_logprobs is not None else None
        stream = sampler.sample(draft.prompt_ids, params=self._params(ask, draft, kind, budget))
        try:
            async for sampled in stream:
                transcript.first_token_at = transcript.first_token_at or time.monotonic()
                self._note(draft, sampled)
                piece = visible.feed(sampled.token_ids) if kind != "call" else ""
                if kind == "peek":
                    if piece.strip():
                        break
                elif tokens is not None:
                    tokens.feed(sampled)
                if piece and kind != "peek":
                    yield _deliver(transcript, draft, piece, tokens)
                if visible.stopped:
                    draft.stop_reason = "stop"
                    break
                if sampled.finish is None and time.monotonic() > budget.deadline + _GRACE_S:
                    draft.stop_reason, budget.hit = "length", True
                    break
        finally:
            draft.raw_text = self._template.decode(draft.token_ids)
            await stream.aclose()
        if kind not in ("call", "peek"):
            if tokens is not None:
                tokens.finish()
            if piece := visible.finish():
                yield _deliver(transcript, draft, piece, tokens)

    async def wants_tool(
        self, ask: Ask, sampler: Sampler, transcript: Transcript, draft: Draft, budget: Budget
    ) -> bool:
        """Sample as far as it takes to know whether the turn only calls tools; the draft then holds it whole."""
        stream = self.sample(ask, sampler, transcript, draft, kind="peek", budget=budget)
        async with aclosing(stream) as silent:
            async for _ in silent:
                raise AssertionError("a peek shows nothing")
        return OPEN in draft.raw_text and not self._template.shown(draft.token_ids).strip()

    def _params(self, ask: Ask, draft: Draft, kind: Kind, budget: Budget) -> Mapping[str, Any]:
        room = max(1, self._max_context - len(draft.prompt_ids))
        left = self._max_completion if budget.tokens is None else budget.tokens
        params: dict[str, Any] = {
            **ask.params,
            "max_tokens": min(self._max_completion, left, room),
            "stop_token_ids": list(self._template.stop_ids),
        }
        if ask.top_logprobs:
            params["logprobs"] = ask.top_logprobs
        bound = {"answer": ask.answer_params, "call": ask.call_params}.get(kind)
        return {**params, **(bound or {})}

    def _note(self, draft: Draft, sampled: Sampled) -> None:
        draft.token_ids += sampled.token_ids
        draft.logprobs += sampled.logprobs
        if sampled.finish is not None:
            draft.stop_reason = _stop_reason(sampled.finish)


def _deliver(transcript: Transcript, draft: Draft, piece: str, tokens: ShownTokens | None) -> TextDelta:
    """Note the text as delivered: the reader sends it before it asks for more."""
    break_ = SEPARATOR if transcript.delivered and not draft.shown_text else ""
    draft.shown_text += piece
    transcript.delivered += break_ + piece
    scores = tokens.shown(len(draft.shown_text)) if tokens is not None else ()
    transcript.scores += scores
    return TextDelta(break_ + piece, scores)


def _stop_reason(finish: str) -> StopReason:
    if finish in ("stop", "length"):
        return "stop" if finish == "stop" else "length"
    raise EngineBroken(f"the engine ended the turn with {finish[:40]!r}")
