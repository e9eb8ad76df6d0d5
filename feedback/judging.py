"""Which judge reads the next user message, and how far it is believed: both follow the pairs of thumb and words.

An episode is priced with the agreement known at its own time, so that a replay prices it alike.
"""

import bisect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from feedback.agent_file import Implicit
from feedback.implicit import MIN_PAIRS, Judge, Pair, learn, rules, trust

REMEMBERED = 1_000
"""Pairs that count: agreement follows the users of now, and fitting stays cheap."""

_REFIT_GROWTH = 1.25

_log = logging.getLogger(__name__)


class Judging:
    """Starts with the rules; learns beside the work and takes the result up when it is there."""

    def __init__(self, settings: Implicit, pairs: Sequence[Pair]) -> None:
        self.judge: Judge = rules
        self._settings = settings
        self._pairs = {pair.response_id: pair for pair in pairs}
        self._fitted = 0
        self._learner = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._learning: Future[Judge] | None = None
        self._index()

    def note(self, pairs: Sequence[Pair]) -> None:
        """Take in pairs that were just stored; a known one keeps its verdict."""
        if not pairs:
            return
        for pair in pairs:
            known = self._pairs.get(pair.response_id)
            self._pairs[pair.response_id] = pair if known is None else _with_thumb(known, pair.thumb)
        newest = sorted(self._pairs.values(), key=lambda pair: (pair.at, pair.response_id))[-REMEMBERED:]
        self._pairs = {pair.response_id: pair for pair in newest}
        self._index()

    def forget(self, response_ids: Sequence[str]) -> None:
        """Of a reply that is not kept no words are kept either; what was learned from them fades with the next learning."""
        for response_id in response_ids:
            self._pairs.pop(response_id, None)
        self._index()

    def tau(self, at: int) -> float:
        """Trust in words, as it was known at a record time."""
        known = bisect.bisect_right(self._times, at)
        return trust(self._agreed[known], known, start=self._settings.start, needed=self._settings.pairs)

    def agreement(self) -> tuple[int, int]:
        """(agreements, pairs) of now."""
        return self._agreed[-1], len(self._times)

    def learn_when_due(self, submit: Callable[[Sequence[Pair]], Judge] = learn) -> None:
        """Start learning when there is a quarter more to learn from; take up what was learned."""
        if self._learning is not None and self._learning.done():
            self.judge, self._learning = self._learning.result(), None
            _log.info("the next message is judged by %s", "rules" if self.judge is rules else "a classifier")
        enough = len(self._pairs) >= max(MIN_PAIRS, self._fitted * _REFIT_GROWTH)
        if self._learning is None and enough and self._fitted < REMEMBERED:
            self._fitted = len(self._pairs)
            self._learning = self._learner.submit(submit, list(self._pairs.values()))

    def close(self) -> None:
        """Do not wait for what is being learned."""
        self._learner.shutdown(wait=False, cancel_futures=True)

    def _index(self) -> None:
        """Running sums over the pairs that were not silence, in order of time."""
        spoken = sorted((pair.at, pair.agrees) for pair in self._pairs.values() if pair.verdict)
        self._times = [at for at, _ in spoken]
        self._agreed = [0]
        for _, agrees in spoken:
            self._agreed.append(self._agreed[-1] + agrees)


def _with_thumb(pair: Pair, thumb: int) -> Pair:
    return Pair(response_id=pair.response_id, text=pair.text, thumb=thumb, verdict=pair.verdict, at=pair.at)
