"""The shapes of a response: the object, and the typed events that build it. Pure but for `settle`; both say the same.

Events are numbered from 0 in the order in which they leave; every item and part is added before it grows and done after.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from uuid_utils import uuid4

from feedback.schemas import ToolCall
from serving import sse
from serving.errors import ApiError
from serving.loop.ask import TextDelta
from serving.loop.transcript import Transcript
from serving.opening import Opened
from serving.reply import id_headers, trace
from serving.responses.body import ResponsesRequest

Keep = Callable[[dict[str, Any]], Awaitable[None]]
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponseShapes:
    """One response; it has one answer."""

    def __init__(
        self, opened: Opened, body: ResponsesRequest, *, agent: str, clock: Callable[[], int], keep: Keep
    ) -> None:
        self._opened, self._body, self._agent, self._clock, self._keep = opened, body, agent, clock, keep
        self._created = clock() // 1000
        self._message_id = f"msg_{uuid4().hex}"
        self._scored = opened.ask.top_logprobs is not None
        self._sequence = 0
        self._message_open = False

    def headers(self) -> dict[str, str]:
        """Ids for clients that drop unknown fields."""
        return id_headers(self._opened)

    def whole(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        """The response object at its end."""
        (transcript,) = transcripts
        limited = transcript.finish == "length"
        return self._response(
            "incomplete" if limited else "completed",
            incomplete_details={"reason": "max_output_tokens"} if limited else None,
            completed_at=None if limited else self._clock() // 1000,
            output=self._output(transcript),
            usage=_usage(transcript),
            agent=trace(self._opened, transcript),
        )

    def first(self) -> bytes:
        """The response exists and is worked on."""
        running = self._response("in_progress")
        return self._event("response.created", response=running) + self._event(
            "response.in_progress", response=running
        )

    def piece(self, index: int, delta: TextDelta) -> bytes:
        """More text; the first piece opens the message."""
        opening = b"" if self._message_open else self._open_message()
        scores = [score.shape() for score in delta.scores]
        return opening + self._event(
            "response.output_text.delta", **self._place(), delta=delta.text, logprobs=scores
        )

    def ended(self, index: int, transcript: Transcript) -> bytes:
        """The message is done, and the calls of the client's tools follow it."""
        data = self._close_message(transcript) if self._message_open else b""
        return data + b"".join(
            self._call_events(number, item)
            for number, item in enumerate(self._output(transcript))
            if item["type"] == "function_call"
        )

    def last(self, transcripts: Sequence[Transcript]) -> bytes:
        """The whole object."""
        response = self.whole(transcripts)
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError, transcripts: Sequence[Transcript]) -> bytes:
        """`response.failed`, then an error that clients raise for: never a clean stop."""
        code = _CODES.get(error.status, "server_error")
        response = self._response(
            "failed", error={"code": code, "message": error.message}, usage=_usage(transcripts[0])
        )
        said = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("response.failed", response=response) + self._event(
            "error", **said, **error.body()
        )

    async def settle(self, transcripts: Sequence[Transcript]) -> None:
        """A response that completed can be continued: it is stored before its reply ends."""
        await self._keep(self.whole(transcripts))

    def _open_message(self) -> bytes:
        self._message_open = True
        item = self._message("in_progress", [])
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._place(), part=part
        )

    def _close_message(self, transcript: Transcript) -> bytes:
        item = self._output(transcript)[0]
        part = item["content"][0]
        done = self._event(
            "response.output_text.done", **self._place(), text=part["text"], logprobs=part["logprobs"]
        )
        done += self._event("response.content_part.done", **self._place(), part=part)
        return done + self._event("response.output_item.done", output_index=0, item=item)

    def _call_events(self, number: int, item: dict[str, Any]) -> bytes:
        where = {"item_id": item["id"], "output_index": number}
        begun = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        return (
            self._event("response.output_item.added", output_index=number, item=begun)
            + self._event("response.function_call_arguments.delta", **where, delta=arguments)
            + self._event(
                "response.function_call_arguments.done", **where, name=item["name"], arguments=arguments
            )
            + self._event("response.output_item.done", output_index=number, item=item)
        )

    def _output(self, transcript: Transcript) -> list[dict[str, Any]]:
        """The text, where there is any, then the calls."""
        items = [_call(call) for call in transcript.client_calls]
        if transcript.client_calls and not transcript.delivered:
            return items
        status = "incomplete" if transcript.finish == "length" else "completed"
        scores = [score.shape() for score in transcript.scores] if self._scored else []
        part = {"type": "output_text", "text": transcript.delivered, "annotations": [], "logprobs": scores}
        return [self._message(status, [part]), *items]

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"id": self._message_id, "type": "message", "role": "assistant"}
        return {**message, "status": status, "content": content}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse.event(value, name=kind)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        body, opening = self._body, self._opened.opening
        text_format = body.text.format if body.text is not None else None
        return {
            "id": opening.response_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "model": self._agent,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "background": False,
            "tools": body.tools or [],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "max_output_tokens": body.max_output_tokens,
            "temperature": self._opened.sampling.temperature,
            "top_p": self._opened.sampling.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": {
                "format": {"type": "text"}
                if text_format is None
                else text_format.model_dump(by_alias=True, exclude_none=True)
            },
            "reasoning": {"effort": None, "summary": None},
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "metadata": body.metadata or {},
            "episode_id": opening.episode.episode_id,
            **fields,
        }


def answer_message(value: dict[str, Any]) -> dict[str, Any]:
    """The output of a response as the chat message that a follow-up goes on from."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for item in value["output"]:
        if item["type"] == "message":
            message["content"] = item["content"][0]["text"]
        else:
            function = {"name": item["name"], "arguments": item["arguments"]}
            message.setdefault("tool_calls", []).append({"id": item["call_id"], "function": function})
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    fixed = {"id": f"fc_{call.id.removeprefix('call_')}", "type": "function_call", "status": "completed"}
    return {**fixed, "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _usage(transcript: Transcript) -> dict[str, Any]:
    usage = transcript.usage()
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
