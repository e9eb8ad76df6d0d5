"""The shapes of a chat reply, whole and in chunks. Pure; both are made from the same transcripts, so they say the same."""

from collections.abc import Sequence
from typing import Any

from feedback.schemas import ToolCall
from serving import sse
from serving.errors import ApiError
from serving.loop import logprobs
from serving.loop.ask import TextDelta
from serving.loop.transcript import Transcript
from serving.opening import Opened


class ChatShapes:
    """`POST /v1/chat/completions`; the reply's id is that of its first answer, further ones carry their own."""

    def __init__(self, opened: Sequence[Opened], *, agent: str, created: int, include_usage: bool) -> None:
        self._opened, self._agent = opened, agent
        self._created, self._include_usage = created, include_usage
        self._scored = opened[0].ask.top_logprobs is not None

    def headers(self) -> dict[str, str]:
        """Ids for clients that drop unknown fields."""
        return id_headers(self._opened[0])

    def whole(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        """`chat.completion`."""
        choices = []
        for index, transcript in enumerate(transcripts):
            message: dict[str, Any] = {"role": "assistant", "content": transcript.delivered, "refusal": None}
            if transcript.client_calls:
                message["tool_calls"] = [_call(call) for call in transcript.client_calls]
                message["content"] = transcript.delivered or None
            choice = {"index": index, "message": message, "finish_reason": transcript.finish}
            scores = logprobs.shapes(transcript.scores) if self._scored else None
            choices.append({**choice, "logprobs": scores, **self._own(index, transcript)})
        return {
            **self._fixed("chat.completion"),
            "choices": choices,
            "usage": _usage(transcripts),
            "agent": trace(self._opened[0], transcripts[0]),
        }

    def first(self) -> bytes:
        """The chunks that open the messages."""
        opening = {"role": "assistant", "content": ""}
        return b"".join(sse.event(self._chunk(index, opening)) for index in range(len(self._opened)))

    def piece(self, index: int, delta: TextDelta) -> bytes:
        """A piece of the content."""
        scores = logprobs.shapes(delta.scores) if self._scored else None
        return sse.event(self._chunk(index, {"content": delta.text}, scores=scores))

    def ended(self, index: int, transcript: Transcript) -> bytes:
        """Calls of the client's tools, and the finish reason."""
        chunks = [
            self._chunk(index, {"tool_calls": [{"index": number, **_call(call)}]})
            for number, call in enumerate(transcript.client_calls)
        ]
        final = self._chunk(index, {}, finish=transcript.finish)
        final["choices"][0].update(self._own(index, transcript))
        chunks.append({**final, "agent": trace(self._opened[index], transcript)})
        return b"".join(sse.event(chunk) for chunk in chunks)

    def last(self, transcripts: Sequence[Transcript]) -> bytes:
        """The usage where it was asked for, and the end."""
        if not self._include_usage:
            return sse.FINAL
        usage = {**self._fixed("chat.completion.chunk"), "choices": [], "usage": _usage(transcripts)}
        return sse.event(usage) + sse.FINAL

    def failed(self, error: ApiError, transcripts: Sequence[Transcript]) -> bytes:
        """OpenAI's clients raise for it."""
        return sse.event(error.body())

    async def settle(self, transcripts: Sequence[Transcript]) -> None:
        """The answers' own records are enough."""

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, scores: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}
        chunk = {**self._fixed("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _fixed(self, kind: str) -> dict[str, Any]:
        opening = self._opened[0].opening
        return {
            "id": opening.response_id,
            "object": kind,
            "created": self._created,
            "model": self._agent,
            "episode_id": opening.episode.episode_id,
        }

    def _own(self, index: int, transcript: Transcript) -> dict[str, Any]:
        """What a choice says of itself where there are several: each can be rated by its own id."""
        if len(self._opened) == 1:
            return {}
        opened = self._opened[index]
        return {"response_id": opened.opening.response_id, "agent": trace(opened, transcript)}


def id_headers(opened: Opened) -> dict[str, str]:
    """The ids of an answer, in any API."""
    opening = opened.opening
    return {"X-Episode-Id": opening.episode.episode_id, "X-Adapter-Version": opening.assignment.version}


def trace(opened: Opened, transcript: Transcript) -> dict[str, Any]:
    """The `agent` extension: what happened inside."""
    opening = opened.opening
    return {
        "episode_id": opening.episode.episode_id,
        "adapter": opening.assignment.version,
        "arm": opening.assignment.arm,
        "steps": len(transcript.drafts),
        "tools": [
            {
                "id": outcome.call_id,
                "name": outcome.name,
                "arguments": arguments[outcome.call_id],
                "result": outcome.content,
                "fault": outcome.fault,
            }
            for draft in transcript.drafts
            for arguments in [{call.id: call.arguments for call in draft.tool_calls}]
            for outcome in draft.tool_results
        ],
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """Tokens of all turns of all answers; the prompt that they share counts once."""
    shared = sum(len(each.drafts[0].prompt_ids) for each in transcripts[1:] if each.drafts)
    usages = [transcript.usage() for transcript in transcripts]
    prompt = sum(usage.prompt_tokens for usage in usages) - shared
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
