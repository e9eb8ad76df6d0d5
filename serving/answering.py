"""One answer while it is made: run under a lease on its version, and recorded exactly once, whatever ends it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from feedback.schemas import Status
from serving.errors import ApiError
from serving.gateway import Gateway
from serving.loop.ask import Event, ToolEnded
from serving.loop.transcript import Transcript
from serving.opening import Opened


class Answering:
    """Opening it begins to make its response id durable."""

    def __init__(self, gateway: Gateway, opened: Opened) -> None:
        self.opened, self.transcript = opened, Transcript()
        self.sent_text = 0  # characters that have left
        self._gateway = gateway
        self._durable = gateway.recorder.open(opened.opening)
        self._closed = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the agent loop. Raises EngineError and NotRoutable."""
        version = self.opened.opening.assignment.version
        running = self._gateway.metrics.in_flight.labels(version)
        running.inc()
        try:
            with self._gateway.adapters.lease(version) as lease:
                loop = self._gateway.agent.run(self.opened.ask, lease, self.transcript)
                async with aclosing(loop) as events:
                    async for event in events:
                        self._count(event)
                        yield event
        finally:
            running.dec()

    async def wait_durable(self) -> None:
        """Until the response id survives a `kill -9`. Raises ApiError."""
        try:
            await asyncio.shield(asyncio.wrap_future(self._durable))
        except Exception as error:
            raise ApiError(
                503, "the episode cannot be stored now", code="storage", retry_after_s=2
            ) from error

    def close(self, status: Status | None) -> None:
        """Record it, once. None keeps the status that the agent loop came to; else only what was sent was seen."""
        if self._closed:
            return
        self._closed = True
        if status is not None:
            self.transcript.status = status
            self.transcript.keep_delivered(self.sent_text)
        seconds = time.monotonic() - self.opened.begun
        opened = self.opened
        self._gateway.recorder.close(opened.opening, self.transcript, opened.sampling, seconds=seconds)
        self._observe(seconds)

    def _observe(self, seconds: float) -> None:
        metrics, assignment = self._gateway.metrics, self.opened.opening.assignment
        labels = (metrics.agent, assignment.version, assignment.arm)
        metrics.requests.labels(*labels, str(self.transcript.status)).inc()
        metrics.duration.labels(*labels).observe(seconds)
        if self.transcript.first_token_at is not None:
            metrics.first_token.labels(*labels).observe(self.transcript.first_token_at - self.opened.begun)

    def _count(self, event: Event) -> None:
        if isinstance(event, ToolEnded):
            known = event.outcome.fault not in ("unknown_tool", "malformed")
            name = event.outcome.name if known else "invalid"
            self._gateway.metrics.tool_calls.labels(name, event.outcome.fault or "ok").inc()
