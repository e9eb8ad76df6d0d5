"""`POST /v1/chat/completions`: one code path for streaming and not, which ends the engine's work when the client leaves."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from feedback.schemas import Status
from serving import sse
from serving.adapters import NotRoutable
from serving.agent import Event, TextDelta, ToolEnded
from serving.bodies import ChatRequest, read_json, validate
from serving.engine import EngineBroken, EngineBusy, EngineDown, EngineError, EngineRefused
from serving.errors import ApiError, json_response
from serving.gateway import Gateway
from serving.opening import Opened
from serving.reply import Shapes
from serving.routes.access import caller, require
from serving.transcript import Transcript

_log = logging.getLogger(__name__)


def router(gateway: Gateway) -> APIRouter:
    """The route."""
    routes = APIRouter()
    schema = {"requestBody": {"content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}}

    @routes.post("/v1/chat/completions", response_model=None, openapi_extra=schema)
    async def chat(request: Request) -> Response:
        """Answer a conversation; server-side tools run inside."""
        key = require(request, gateway.keys, "chat")
        body = validate(ChatRequest, read_json(await request.body()))
        if gateway.adapters.in_flight() >= gateway.max_in_flight:
            raise ApiError(429, "too many requests run now", code="overloaded", retry_after_s=1)
        opened = await gateway.opener.open(caller(request, key, body), body)
        return ChatReply(gateway, opened, body)

    return routes


class ChatReply(Response):
    """Runs the interaction while it answers. Whatever ends it, it is recorded once."""

    def __init__(self, gateway: Gateway, opened: Opened, body: ChatRequest) -> None:
        super().__init__()
        usage = bool(body.stream_options and body.stream_options.include_usage)
        self._gateway, self._opened, self._stream = gateway, opened, bool(body.stream)
        created = gateway.clock() // 1000
        self._shapes = Shapes(opened, agent=gateway.agent_file.agent, created=created, include_usage=usage)
        self._transcript = Transcript()
        self._sent_text = 0
        self._begun = False
        self._last_sent = 0.0
        self._durable = gateway.recorder.open(opened.opening)
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that leaves cancels the work within one turn of the event loop."""
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
        version = self._opened.opening.assignment.version
        running = self._gateway.metrics.in_flight.labels(version)
        running.inc()
        try:
            with self._gateway.adapters.lease(version) as lease:
                events = self._gateway.agent.run(self._opened.ask, lease, self._transcript)
                if self._stream:
                    await self._streamed(events, send)
                else:
                    await self._whole(events, send)
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
            _log.exception("interaction %s failed", self._opened.opening.response_id)
            await self._fail(ApiError(500, "the server failed", code="internal"), send)
        finally:
            running.dec()

    async def _whole(self, events: AsyncGenerator[Event, None], send: Send) -> None:
        async with aclosing(events):
            async for event in events:
                self._count(event)
        await self._wait_durable()
        self._sent_text = len(self._transcript.delivered)
        body = self._shapes.whole(self._transcript)
        self._close(None)
        self._begun = True
        response = json_response(body, headers=self._shapes.headers())
        await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body)})

    async def _streamed(self, events: AsyncGenerator[Event, None], send: Send) -> None:
        beat: asyncio.Task[None] | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    self._count(event)
                    if not self._begun:
                        await self._begin(send)
                        beat = asyncio.create_task(self._keep_alive(send))
                    if isinstance(event, TextDelta):
                        await self._push(sse.event(self._shapes.text(event.text)), send)
                        self._sent_text += len(event.text)
            if not self._begun:
                await self._begin(send)
            chunks = self._shapes.last(self._transcript)
            self._close(None)
            await self._push(b"".join(sse.event(chunk) for chunk in chunks) + sse.FINAL, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            if beat is not None:
                beat.cancel()

    async def _begin(self, send: Send) -> None:
        """The head and the first chunk, once the response id is durable."""
        await self._wait_durable()
        self._begun = True
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        headers |= {name.lower(): value for name, value in self._shapes.headers().items()}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._push(sse.event(self._shapes.first()), send)

    async def _push(self, data: bytes, send: Send) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        """A comment whenever nothing was sent for a while: a tool runs, or the engine is slow."""
        pause = self._gateway.keep_alive_s
        while True:
            quiet = time.monotonic() - self._last_sent
            if quiet >= pause:
                await self._push(sse.comment("keep-alive"), send)
                quiet = 0.0
            await asyncio.sleep(pause - quiet)

    async def _wait_durable(self) -> None:
        try:
            await asyncio.shield(asyncio.wrap_future(self._durable))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise ApiError(
                503, "the episode cannot be stored now", code="storage", retry_after_s=2
            ) from error

    async def _fail(self, error: ApiError, send: Send) -> None:
        """A status before the first byte; after it an error frame, and never a clean stop."""
        if self._begun:
            await self._push(sse.event(error.body()), send)
            await send({"type": "http.response.body", "body": b""})
            return
        self._begun = True
        response = error.response()
        response.headers.update(self._shapes.headers())
        await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body)})

    def _close(self, status: Status | None) -> None:
        """Record the interaction, once. None keeps the status that the agent loop came to."""
        if self._closed:
            return
        self._closed = True
        transcript, opened = self._transcript, self._opened
        if status is not None:
            transcript.status = status
            transcript.keep_delivered(self._sent_text)
        seconds = time.monotonic() - opened.begun
        self._gateway.recorder.close(opened.opening, transcript, opened.sampling, seconds=seconds)
        self._observe(seconds)

    def _observe(self, seconds: float) -> None:
        metrics, assignment = self._gateway.metrics, self._opened.opening.assignment
        labels = (metrics.agent, assignment.version, assignment.arm)
        metrics.requests.labels(*labels, str(self._transcript.status)).inc()
        metrics.duration.labels(*labels).observe(seconds)
        if self._transcript.first_token_at is not None:
            metrics.first_token.labels(*labels).observe(self._transcript.first_token_at - self._opened.begun)

    def _count(self, event: Event) -> None:
        if isinstance(event, ToolEnded):
            known = event.outcome.fault not in ("unknown_tool", "malformed")
            name = event.outcome.name if known else "invalid"
            self._gateway.metrics.tool_calls.labels(name, event.outcome.fault or "ok").inc()


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
