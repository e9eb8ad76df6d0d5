"""How requests are read from a connection: uvicorn's parser, with a bound on what it keeps before a request begins.

The parser itself keeps an endless head for ever; the exact bound on headers is the edge's, this one saves the memory.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 512 * 1024
"""Bytes of a request line and headers; twice what one read may bring, so that a body before it is never taken for it."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. Over the bound it gets a 400 and is closed."""

    _in_head = False
    _head = 0

    def data_received(self, data: bytes) -> None:
        """What the connection brought."""
        super().data_received(data)
        self._head = self._head + len(data) if self._in_head else 0
        if self._head > LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is here."""
        self._in_head = False
        super().on_headers_complete()
