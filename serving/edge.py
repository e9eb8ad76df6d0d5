"""What every request meets first: a request id, bounds on its headers and body, and the limits of its key. Plain ASGI, so that it costs little.

A request over a bound is refused before its body is read.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid4

from serving.auth import KeyRing
from serving.errors import ApiError
from serving.limits import Pace, Seats


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """Bounds of one request and of one key; bytes, and requests a second."""

    max_body: int
    max_headers: int
    key_rate: float
    key_burst: int
    key_in_flight: int
    origins: tuple[str, ...]


class Edge:
    """Wraps the application. `refused` is told why a request was refused."""

    def __init__(
        self, app: ASGIApp, rules: EdgeRules, keys: KeyRing, *, refused: Callable[[str], None]
    ) -> None:
        self._app, self._rules, self._keys, self._refused = app, rules, keys, refused
        self._pace = Pace(rules.key_rate, rules.key_burst)
        self._seats = Seats(rules.key_in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add `x-request-id` to every reply, the refusals included."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid4().hex}".encode()

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        owner, problem = self._admit(scope)
        if problem is not None:
            self._refused(str(problem.code))
            await problem.response()(scope, receive, labelled)
            return
        try:
            await self._app(scope, self._bounded(receive), labelled)
        finally:
            if owner is not None:
                self._seats.give_back(owner)

    def _admit(self, scope: Scope) -> tuple[str | None, ApiError | None]:
        """(who took a seat, or why nobody gets in)."""
        length, size, authorization = 0, 0, None
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"content-length":
                length = int(value) if value.isdigit() else 0
            elif name == b"authorization":
                authorization = value.decode("latin-1")
        if size + len(scope.get("query_string", b"")) > self._rules.max_headers:
            message = f"the headers are over {self._rules.max_headers} bytes"
            return None, ApiError(431, message, code="headers_too_large")
        if length > self._rules.max_body:
            return None, self._too_large()
        key = self._keys.find(authorization) if authorization is not None else None
        if key is None:
            return None, None  # the route says what is missing
        if wait := self._pace.wait(key.owner, time.monotonic()):
            message = "this key sends too many requests"
            return None, ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait)
        if not self._seats.take(key.owner):
            message = f"{self._rules.key_in_flight} requests of this key run now"
            return None, ApiError(429, message, code="too_many_in_flight", retry_after_s=1)
        return key.owner, None

    def _bounded(self, receive: Receive) -> Receive:
        """The body, as long as it stays below the cap, declared or not."""
        got = 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b"")) if message["type"] == "http.request" else 0
            if got > self._rules.max_body:
                self._refused("body_too_large")
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is over {self._rules.max_body} bytes", code="body_too_large")
