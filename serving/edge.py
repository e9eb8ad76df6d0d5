"""What every request meets first: a request id, and a bound on its body. Plain ASGI, so that it costs little."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid4

from serving.errors import ApiError


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, max_body: int) -> None:
        self._app, self._max_body = app, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add `x-request-id` to every reply; 413 for a body over the cap, declared or not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid4().hex}".encode()
        got = 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b"")) if message["type"] == "http.request" else 0
            if got > self._max_body:
                raise self._too_large()
            return message

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        if self._declared(scope) > self._max_body:
            await self._too_large().response()(scope, receive, labelled)
            return
        await self._app(scope, bounded, labelled)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is over {self._max_body} bytes", code="body_too_large")

    def _declared(self, scope: Scope) -> int:
        for name, value in scope["headers"]:
            if name == b"content-length":
                return int(value) if value.isdigit() else 0
        return 0
