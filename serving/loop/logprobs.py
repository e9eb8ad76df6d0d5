"""Log-probabilities for the client, of the tokens whose text it sees and of no others.

They are those of the distribution that was sampled (temperature included). However the stream is cut, the same
tokens are reported: a token belongs to the text once the character at which it begins is shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.engines.engine import LOWEST_LOGPROB, Sampled
from tools.template import Template

_SPLIT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One shown token and the most probable ones in its place."""

    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()

    def shape(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        top = [_entry(text, raw, value) for text, raw, value in self.top]
        return {**_entry(self.text, self.raw, self.logprob), "top_logprobs": top}


class ShownTokens:
    """Feed it what is sampled; it returns the scores of what has been shown."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._pending: list[int] = []  # ids whose characters are not complete
        self._waiting: list[TokenScore] = []
        self._placed: list[tuple[int, TokenScore]] = []  # (index of its first character, score)
        self._length = 0
        self._given = 0

    def feed(self, sampled: Sampled) -> None:
        """What one event of the engine added."""
        for index, token in enumerate(sampled.token_ids):
            logprob = sampled.logprobs[index] if index < len(sampled.logprobs) else math.nan
            top = sampled.top[index] if index < len(sampled.top) else {}
            self._waiting.append(self._score(token, logprob, top))
            self._pending.append(token)
            text = self._template.decode(self._pending)
            if not text.endswith(_SPLIT) or _is_whole(b"".join(score.raw for score in self._waiting)):
                self._place(text)

    def finish(self) -> None:
        """Nothing more comes: what is pending will never be complete."""
        if self._pending:
            self._place(self._template.decode(self._pending))

    def shown(self, characters: int) -> tuple[TokenScore, ...]:
        """The scores not returned before of tokens that begin within this many characters."""
        start = self._given
        while self._given < len(self._placed) and self._placed[self._given][0] < characters:
            self._given += 1
        return tuple(score for _, score in self._placed[start : self._given])

    def _place(self, text: str) -> None:
        self._placed += [(self._length, score) for score in self._waiting]
        self._length += len(text)
        self._pending, self._waiting = [], []

    def _score(self, token: int, logprob: float, top: dict[int, float]) -> TokenScore:
        others = tuple((self._text(each), self._raw(each), _finite(value)) for each, value in top.items())
        return TokenScore(self._text(token), self._raw(token), _finite(logprob), others)

    def _text(self, token: int) -> str:
        return self._template.decode([token])

    def _raw(self, token: int) -> bytes:
        return self._template.token_bytes(token)


def shapes(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """The `logprobs` of a choice."""
    return {"content": [score.shape() for score in scores], "refusal": None}


def _is_whole(raw: bytes) -> bool:
    """Whether these are whole characters: U+FFFD itself looks like a split one."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _entry(text: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(raw)}


def _finite(value: float) -> float:
    """JSON has neither -inf nor NaN; no client expects null."""
    return max(value, LOWEST_LOGPROB) if math.isfinite(value) else LOWEST_LOGPROB
