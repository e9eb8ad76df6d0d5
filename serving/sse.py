"""Server-sent events, both ways. Only CR, LF and CRLF end a line: U+2028 inside JSON does not."""

import orjson

DONE = b"[DONE]"


class EventParser:
    """Bytes in, in any cut; the data of whole events out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data fields of the events that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


def event(value: object, *, name: str = "") -> bytes:
    """One event, with its type where the API types its events."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + orjson.dumps(value) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients ignore and proxies take for life."""
    return b": " + text.encode() + b"\n\n"


FINAL = b"data: [DONE]\n\n"
