"""One simulated user: asks, refines, complains or thanks, and perhaps rates.

Invariant: the thumb of an episode says whether every request was answered right the first time, except for
honest noise; success itself, the goal and the rubric are never sent.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from deploy.simulation.ledger import Answer, EpisodeLine, RatingLine, now_ms
from deploy.simulation.reactions import PATIENCE, reaction
from deploy.simulation.talk import FAILURES, Reply, Talk
from deploy.simulation.travel import faults, read, truth
from deploy.simulation.world import Request, Task

HAVE_EARLIER = 0.46
"""Share of the tasks with a request before the last one that is priced (`world.task`): only these can have such a thumb."""


@dataclass(frozen=True)
class Habits:
    """Shares of what users do."""

    rates: float = 0.5  # of the episodes get a thumb
    flips: float = 0.2  # of the thumbs say the opposite
    rates_earlier: float = 0.2  # of the rated episodes get one on an earlier answer too
    streams: float = 0.5
    ends: float = 0.5  # close the episode; the others go idle
    thinks_s: tuple[float, float] = (0.0, 0.0)  # least, most: reading a reply and typing the next message


class Conversation:
    """One user's episode in progress."""

    def __init__(self, line: EpisodeLine, talk: Talk, draw: random.Random, habits: Habits) -> None:
        self.line = line
        self._talk, self._draw, self._habits = talk, draw, habits
        self._messages: list[dict[str, str]] = []

    async def ask(self, request: Request) -> Answer:
        """Send a request and judge its answer."""
        reply = await self._say(request.text)
        reply.seen.wrong = faults(reply.text, truth(request, self.line.episode_id))
        reply.seen.quotes_total = read(reply.text).total is not None
        return reply.seen

    async def react(self, answer: Answer) -> bool:
        """Perhaps complain or thank; whether anything was said."""
        reacted = reaction(self._draw, answer.wrong or ())
        if reacted is None:
            return False
        complains, words = reacted
        await self._say(words)
        self.line.complaints += complains
        self.line.thanks += not complains
        return True

    async def _say(self, text: str) -> Reply:
        if self._messages:
            await asyncio.sleep(self._draw.uniform(*self._habits.thinks_s))
        self._messages.append({"role": "user", "content": text})
        reply = await self._talk.say(
            [*self._messages],
            self.line.user,
            episode_id=self.line.episode_id,
            streamed=self._draw.random() < self._habits.streams,
        )
        self.line.episode_id = reply.seen.episode_id
        self.line.answers.append(reply.seen)
        self._messages.append({"role": "assistant", "content": reply.text})
        return reply


async def run_user(
    line: EpisodeLine,
    task: Task,
    *,
    talk: Talk,
    draw: random.Random,
    habits: Habits,
    stopping: Callable[[], bool],
) -> list[RatingLine]:
    """Drive one episode, filling its line; returns the thumbs that its user will give, later."""
    conversation = Conversation(line, talk, draw, habits)
    spare = PATIENCE - len(task.requests)
    try:
        for request in task.requests:
            if stopping():
                break
            answer = await conversation.ask(request)
            spare -= spare > 0 and await conversation.react(answer)
        else:
            line.success = all(not answer.wrong for answer in line.answers)
    except FAILURES as failure:
        line.failure = f"{type(failure).__name__}: {str(failure)[:200]}"
    line.over_at = now_ms()
    return thumbs(line, draw, habits)


def thumbs(line: EpisodeLine, draw: random.Random, habits: Habits) -> list[RatingLine]:
    """The ratings of a finished episode: one on its last answer that quotes a total, sometimes one on an earlier answer.

    Where no answer quotes a total, which is a fault that its user must be able to rate, the last answer takes the place.
    """
    answers = [answer for answer in line.answers if answer.wrong is not None]
    if line.success is None or not answers or draw.random() >= habits.rates:
        return []
    line.rated = True
    quotes = [place for place, answer in enumerate(answers) if answer.quotes_total]
    last = quotes[-1] if quotes else len(answers) - 1
    given = [_thumb(line, answers[last], truth=line.success, last=True, flip=draw.random() < habits.flips)]
    if last > 0 and draw.random() < habits.rates_earlier / HAVE_EARLIER:
        earlier = answers[draw.randrange(last)]
        flip = draw.random() < habits.flips
        given.append(_thumb(line, earlier, truth=not earlier.wrong, last=False, flip=flip))
    draw.shuffle(given)
    return given


def _thumb(line: EpisodeLine, answer: Answer, *, truth: bool, last: bool, flip: bool) -> RatingLine:
    return RatingLine(
        line.user,
        line.index,
        line.episode_id,
        answer.response_id,
        value=truth != flip,
        truth=truth,
        last=last,
    )
