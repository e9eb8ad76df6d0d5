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
        self._marks, self._stops = (*hidden, *stops), frozenset(stops)
        self._beginnings = frozenset(mark[:size] for mark in self._marks for size in range(1, len(mark)))
        self._first = frozenset(mark[0] for mark in self._marks)
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
        if piece.endswith(_SPLIT):
            return ""
        self._pending = []
        self._text += piece
        return self._give()

    def finish(self) -> str:
        """The rest: nothing more will come, so nothing can be split or begun."""
        if self._ended:
            return ""
        self._text += self._template.decode(self._pending) if self._pending else ""
        self._pending = []
        return self._give(last=True)

    def _give(self, *, last: bool = False) -> str:
        """What was not given yet, up to a mark or the possible beginning of one."""
        fresh = self._text[self._given :]
        if not self._first.isdisjoint(fresh):
            fresh = self._cut(fresh)
        if not self._ended and not last:
            fresh = fresh[: len(fresh) - self._held(fresh)]
        self._ended = self._ended or last
        self._given += len(fresh)
        return fresh

    def _cut(self, fresh: str) -> str:
        """End at the first mark; nothing given before holds a part of one."""
        found = [(at, mark) for mark in self._marks if (at := fresh.find(mark)) >= 0]
        if not found:
            return fresh
        at, mark = min(found, key=lambda each: (each[0], each[1] in self._stops))
        self._ended, self.stopped = True, mark in self._stops
        return fresh[:at]

    def _held(self, fresh: str) -> int:
        """Length of the longest end that may be the beginning of a mark."""
        for at, character in enumerate(fresh):
            if character in self._first and fresh[at:] in self._beginnings:
                return len(fresh) - at
        return 0
