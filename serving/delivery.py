"""Runs the answers to one request while it replies: one path for streaming and not, for every API that is spoken.

A client that leaves ends the engine's work within one turn of the event loop; whatever ends an answer, it is recorded once.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from feedback.schemas import Status
from serving import sse
from serving.answering import Answering
from serving.engines.adapters import NotRoutable
from serving.engines.engine import EngineBroken, EngineBusy, EngineDown, EngineError, EngineRefused
from serving.errors import ApiError, json_response
from serving.loop.ask import Event, TextDelta
from serving.loop.transcript import Transcript
from serving.merge import side_by_side

_log = logging.getLogger(__name__)


class Shapes(Protocol):
    """How one API says it: whole as JSON, or as the bytes of server-sent events."""

    def headers(self) -> dict[str, str]:
        """Beside the content type."""

    def whole(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        """The reply that is not streamed."""

    def first(self) -> bytes:
        """What opens the stream."""

    def piece(self, index: int, delta: TextDelta) -> bytes:
        """More text of one answer."""

    def ended(self, index: int, transcript: Transcript) -> bytes:
        """One answer is whole."""

    def last(self, transcripts: Sequence[Transcript]) -> bytes:
        """What closes the stream."""

    def failed(self, error: ApiError, transcripts: Sequence[Transcript]) -> bytes:
        """A failure after the first byte; never to be taken for the end."""

    async def settle(self, transcripts: Sequence[Transcript]) -> None:
        """Make durable what must be before the reply ends. Raises ApiError."""


class Delivery(Response):
    """The reply to one request, which may hold several answers."""

    def __init__(
        self, answers: Sequence[Answering], shapes: Shapes, *, stream: bool, keep_alive_s: float
    ) -> None:
        super().__init__()
        self._answers, self._shapes, self._stream = answers, shapes, stream
        self._keep_alive_s = keep_alive_s
        self._begun = False
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that leaves cancels the work."""
        work = asyncio.create_task(self._work(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    async def _work(self, send: Send) -> None:
        try:
            await (self._streamed(send) if self._stream else self._whole(send))
        except (EngineError, NotRoutable) as error:
            self._close(Status.FAILED)
            await self._fail(_as_api_error(error), send)
        except ApiError as error:
            self._close(Status.FAILED)
            await self._fail(error, send)
        except asyncio.CancelledError:
            self._close(Status.ABORTED)
            raise
        except Exception:
            self._close(Status.FAILED)
            if not self._begun:
                raise
            _log.exception("interaction %s failed", self._answers[0].opened.opening.response_id)
            await self._fail(ApiError(500, "the server failed", code="internal"), send)

    async def _whole(self, send: Send) -> None:
        async with aclosing(side_by_side([answer.events() for answer in self._answers])) as events:
            async for _ in events:
                pass
        await self._wait_durable()
        for answer in self._answers:
            answer.sent_text = len(answer.transcript.delivered)
        body = self._shapes.whole(self._transcripts())
        self._close(None)
        await self._shapes.settle(self._transcripts())
        self._begun = True
        response = json_response(body, headers=self._shapes.headers())
        await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body)})

    async def _streamed(self, send: Send) -> None:
        beat: asyncio.Task[None] | None = None
        left = len(self._answers)
        try:
            async with aclosing(side_by_side([answer.events() for answer in self._answers])) as events:
                async for index, event in events:
                    if not self._begun:
                        await self._begin(send)
                        beat = asyncio.create_task(self._keep_alive(send))
                    left -= event is None
                    await self._tell(index, event, send, done=left == 0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            if beat is not None:
                beat.cancel()

    async def _tell(self, index: int, event: Event | None, send: Send, *, done: bool) -> None:
        """Send what one event of one answer comes to; the last one ends the stream."""
        answer = self._answers[index]
        if isinstance(event, TextDelta):
            await self._push(self._shapes.piece(index, event), send)
            answer.sent_text += len(event.text)
        elif event is None:
            data = self._shapes.ended(index, answer.transcript)
            answer.close(None)
            if done:
                await self._shapes.settle(self._transcripts())
                data += self._shapes.last(self._transcripts())
            await self._push(data, send)

    async def _begin(self, send: Send) -> None:
        """The head and the first events, once the response ids are durable."""
        await self._wait_durable()
        self._begun = True
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        headers |= {name.lower(): value for name, value in self._shapes.headers().items()}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._push(self._shapes.first(), send)

    async def _push(self, data: bytes, send: Send) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        """A comment whenever nothing was sent for a while: a tool runs, or the engine is slow."""
        pause = self._keep_alive_s
        while True:
            quiet = time.monotonic() - self._last_sent
            if quiet >= pause:
                await self._push(sse.comment("keep-alive"), send)
                quiet = 0.0
            await asyncio.sleep(pause - quiet)

    async def _fail(self, error: ApiError, send: Send) -> None:
        """A status before the first byte; after it an error frame, and never a clean stop."""
        if self._begun:
            await self._push(self._shapes.failed(error, self._transcripts()), send)
            await send({"type": "http.response.body", "body": b""})
            return
        self._begun = True
        response = error.response()
        response.headers.update(self._shapes.headers())
        await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body)})

    async def _wait_durable(self) -> None:
        for answer in self._answers:
            await answer.wait_durable()

    def _transcripts(self) -> list[Transcript]:
        return [answer.transcript for answer in self._answers]

    def _close(self, status: Status | None) -> None:
        for answer in self._answers:
            answer.close(status)


async def _disconnected(receive: Receive) -> None:
    """Return when the client is gone."""
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()


def _as_api_error(error: Exception) -> ApiError:
    match error:
        case EngineBusy():
            return ApiError(429, str(error), code="overloaded", retry_after_s=1)
        case EngineRefused():
            return ApiError(400, f"the engine refused the request: {error}", code="engine_refused")
        case EngineBroken():
            return ApiError(502, str(error), code="engine_failed")
        case EngineDown():
            return ApiError(503, str(error), code="engine_unavailable", retry_after_s=2)
    return ApiError(503, "no engine can answer now", code="engine_unavailable", retry_after_s=2)
