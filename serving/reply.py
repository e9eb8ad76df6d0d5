"""The shapes of a chat reply, whole and in chunks. Pure; both are made from the same transcript, so they say the same."""

from typing import Any

from feedback.schemas import ToolCall
from serving.opening import Opened
from serving.transcript import Transcript


class Shapes:
    """One reply's fixed fields."""

    def __init__(self, opened: Opened, *, agent: str, created: int, include_usage: bool) -> None:
        self._opened, self._agent = opened, agent
        self._created, self._include_usage = created, include_usage

    def headers(self) -> dict[str, str]:
        """Ids for clients that drop unknown fields."""
        opening = self._opened.opening
        return {"X-Episode-Id": opening.episode.episode_id, "X-Adapter-Version": opening.assignment.version}

    def whole(self, transcript: Transcript) -> dict[str, Any]:
        """`chat.completion`."""
        message: dict[str, Any] = {"role": "assistant", "content": transcript.delivered, "refusal": None}
        if transcript.client_calls:
            message["tool_calls"] = [_call(call) for call in transcript.client_calls]
            message["content"] = transcript.delivered or None
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": transcript.finish}
        return {
            **self._fixed("chat.completion"),
            "choices": [choice],
            "usage": _usage(transcript),
            "agent": self._trace(transcript),
        }

    def first(self) -> dict[str, Any]:
        """The chunk that opens the message."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> dict[str, Any]:
        """A piece of the content."""
        return self._chunk({"content": piece})

    def last(self, transcript: Transcript) -> list[dict[str, Any]]:
        """Calls of the client's tools, the finish reason, and the usage where it was asked for."""
        chunks = [
            self._chunk({"tool_calls": [{"index": index, **_call(call)}]})
            for index, call in enumerate(transcript.client_calls)
        ]
        chunks.append({**self._chunk({}, finish=transcript.finish), "agent": self._trace(transcript)})
        if self._include_usage:
            usage = {**self._fixed("chat.completion.chunk"), "choices": [], "usage": _usage(transcript)}
            chunks.append(usage)
        return chunks

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._fixed("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _fixed(self, kind: str) -> dict[str, Any]:
        opening = self._opened.opening
        return {
            "id": opening.response_id,
            "object": kind,
            "created": self._created,
            "model": self._agent,
            "episode_id": opening.episode.episode_id,
        }

    def _trace(self, transcript: Transcript) -> dict[str, Any]:
        """The `agent` extension: what happened inside."""
        assignment = self._opened.opening.assignment
        return {
            "episode_id": self._opened.opening.episode.episode_id,
            "adapter": assignment.version,
            "arm": assignment.arm,
            "steps": len(transcript.drafts),
            "tools": [
                {
                    "id": outcome.call_id,
                    "name": outcome.name,
                    "arguments": call.arguments,
                    "result": outcome.content,
                    "fault": outcome.fault,
                }
                for draft in transcript.drafts
                for call, outcome in zip(draft.tool_calls, draft.tool_results, strict=False)
            ],
        }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(transcript: Transcript) -> dict[str, Any]:
    usage = transcript.usage()
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
