"""What of a sampled turn people may see, while it is still being sampled.

However the ids arrive, the pieces joined are `Template.shown` of all ids (cut at a stop string): text that may
still turn into a marker, a stop string or a split character is held back.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tools.parse import CLOSE, ENDS, OPEN
from tools.template import Template

_SPLIT = "\ufffd"  # what a decoder puts for the bytes of a character that is not complete


def markers(model_dir: Path) -> tuple[str, ...]:
    """The texts that end the visible part: call markers and every control token of the tokenizer."""
    spec = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    added = [token["content"] for token in spec["added_tokens"]]
    return tuple(dict.fromkeys((OPEN, CLOSE, *ENDS, *added)))


class VisibleText:
    """Feed it sampled ids; it returns what can be shown now."""

    def __init__(self, template: Template, hidden: Sequence[str], stops: Sequence[str] = ()) -> None:
        self._template = template
        self._hidden, self._stops = tuple(hidden), tuple(stops)
        self._pending: list[int] = []
        self._text = ""
        self._given = 0
        self._ended = False
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything given so far."""
        return self._text[: self._given]

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        if self._ended:
            return ""
        self._pending += ids
        piece = self._template.decode(self._pending)
        if not piece.endswith(_SPLIT):
            self._pending = []
            self._text += piece
            piece = ""
        self._cut()
        return self._give(len(self._text) if self._ended else len(self._text) - self._held())

    def finish(self) -> str:
        """The rest: nothing more will come, so nothing can be split or begun."""
        if self._ended:
            return ""
        self._text += self._template.decode(self._pending) if self._pending else ""
        self._pending = []
        self._cut()
        self._ended = True
        return self._give(len(self._text))

    def _cut(self) -> None:
        """End at the first marker or stop string, whichever begins first."""
        found = [
            (at, stop in self._stops)
            for stop in (*self._hidden, *self._stops)
            if (at := self._text.find(stop)) >= 0
        ]
        if found:
            at, by_client = min(found)
            self._text = self._text[:at]
            self._ended = True
            self.stopped = by_client

    def _held(self) -> int:
        """Length of the longest end of the text that may be the beginning of a marker or stop string."""
        longest = 0
        for mark in (*self._hidden, *self._stops):
            for size in range(min(len(mark) - 1, len(self._text)), longest, -1):
                if self._text.endswith(mark[:size]):
                    longest = size
                    break
        return longest

    def _give(self, end: int) -> str:
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece
