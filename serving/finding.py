"""Where a request goes on: which episode, and which stored answer its history extends.

By the name the client gives it, else by the history: the same key owner and person, an answer of ours in it, and
exactly one open episode at that point. Anything else is a new episode that says why in its flags.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving import history
from serving.episodes import Answer, Episode, Episodes

AMBIGUOUS, BRANCH, REWRITTEN, CONTINUED = "ambiguous", "branch", "rewritten", "continued"
_Points = list[tuple[int, list[Answer]]]  # (index of an answer in the history, the stored ones), newest first


@dataclass(frozen=True, slots=True)
class Found:
    """Where the request goes on."""

    episode: Episode | None
    parent: Answer | None
    at: int  # index of the parent's message in the history
    flags: tuple[str, ...] = ()


class Finder:
    """One per gateway."""

    def __init__(self, episodes: Episodes, *, clock: Callable[[], int], idle_ms: float) -> None:
        self._episodes, self._clock, self._idle_ms = episodes, clock, idle_ms

    async def find(
        self,
        owner: str,
        alias: str | None,
        said: Sequence[history.Said],
        *,
        marks: Sequence[str],
        after: str | None = None,
        inside: str | None = None,
    ) -> Found:
        """`marks[i]` is the thread after `said[i]`. A request may name the response it comes `after`, `inside` its episode."""
        answered = [index for index, message in enumerate(said) if message.role == "assistant"]
        stored = await self._episodes.answers([marks[index] for index in answered]) if answered else {}
        points = [(index, stored[marks[index]]) for index in reversed(answered) if marks[index] in stored]
        if after is not None:
            points = [(index, _last(answers, after)) for index, answers in points]
        if inside is not None:
            return self._within(await self._episodes.by_id(owner, inside), answered, points)
        if alias is not None:
            episode = await self._episodes.by_alias(owner, alias) or self._episodes.named(owner, alias)
            return self._within(episode, answered, points)
        return await self._by_history(owner, answered, points)

    def _within(self, episode: Episode | None, answered: list[int], points: _Points) -> Found:
        if episode is not None and not episode.is_open(self._clock(), self._idle_ms):
            parent, at = _newest(points, None)
            return Found(None, parent, at, (CONTINUED, *_rewritten(parent, at, answered)))
        if episode is None:
            return Found(None, None, -1, _rewritten(None, -1, answered))
        parent, at = _newest(points, episode.episode_id)
        return Found(episode, parent, at, (*_branch(episode, parent), *_rewritten(parent, at, answered)))

    async def _by_history(self, owner: str, answered: list[int], points: _Points) -> Found:
        """The first point, from the newest, at which exactly one of this person's open episodes was answered so."""
        now = self._clock()
        for at, answers in points:
            ids = dict.fromkeys(answer.episode_id for answer in answers)
            episodes = [await self._episodes.by_id(owner, episode_id) for episode_id in ids]
            running = [each for each in episodes if each is not None and each.is_open(now, self._idle_ms)]
            if len(running) > 1:
                return Found(None, None, -1, (AMBIGUOUS, REWRITTEN))
            if running:
                mine = next(each for each in reversed(answers) if each.episode_id == running[0].episode_id)
                flags = (*_branch(running[0], mine), *_rewritten(mine, at, answered))
                return Found(running[0], mine, at, flags)
        parent, at = _newest(points, None)
        continued = (CONTINUED,) if parent is not None else ()
        return Found(None, parent, at, (*continued, *_rewritten(parent, at, answered)))


def _last(answers: list[Answer], response_id: str) -> list[Answer]:
    """The same answers with the named one last, where it counts as the newest."""
    return sorted(answers, key=lambda answer: answer.response_id == response_id)


def _newest(points: _Points, episode_id: str | None) -> tuple[Answer | None, int]:
    """The stored answer with the longest history, of this episode or (None) of any."""
    for at, answers in points:
        for answer in reversed(answers):
            if episode_id in (None, answer.episode_id):
                return answer, at
    return None, -1


def _branch(episode: Episode, parent: Answer | None) -> tuple[str, ...]:
    """Not the episode's newest answer: a regeneration or another way on."""
    return () if parent is not None and parent.response_id == episode.newest else (BRANCH,)


def _rewritten(parent: Answer | None, at: int, answered: list[int]) -> tuple[str, ...]:
    """The history holds answers that are not ours as stored."""
    return (REWRITTEN,) if any(index > at for index in answered) else ()
