"""Many simulated users at once, until told to stop.

Invariant: a user has one conversation at a time; every rating that a user decided on is sent before `run` returns,
and every episode and rating has its line in the ledger.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from deploy.simulation.ledger import EpisodeLine, Ledger, RatingLine, now_ms
from deploy.simulation.talk import Talk
from deploy.simulation.users import Habits, run_user
from deploy.simulation.world import task

LIVE_SEEDS = 900_000_000_000  # far from the seeds of the dialogues that the model has learned from


@dataclass
class Counters:
    """What has happened so far."""

    begun: int = 0
    episodes: int = 0  # over, however they went
    succeeded: int = 0
    rated: int = 0
    reacted: int = 0
    requests: int = 0  # answered
    failed: int = 0  # episodes cut by a client-side failure
    ratings_sent: int = 0  # accepted
    ratings_failed: int = 0
    flipped: int = 0  # of those accepted


@dataclass(frozen=True)
class Crowd:
    """How many users there are and how they behave; seconds are (least, most)."""

    users: int = 120
    talking: int = 16
    episodes: int | None = None  # stop after so many
    rating_delay_s: tuple[float, float] = (0.2, 10.0)
    very_late: float = 0.03  # of the ratings come after `very_late_s`
    very_late_s: float = 45.0
    habits: Habits = field(default_factory=Habits)


class UserPool:
    """`run()` until `stop` is set; `counters` may be read meanwhile."""

    def __init__(self, talk: Talk, ledger: Ledger, *, seed: int, crowd: Crowd | None = None) -> None:
        self.counters, self.stop = Counters(), asyncio.Event()
        self._talk, self._ledger, self._seed = talk, ledger, seed
        self._crowd = crowd or Crowd()
        self._idle = [f"user-{number:03d}" for number in range(self._crowd.users)]
        self._choice = random.Random(f"pool:{seed}")
        self._pending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep `talking` conversations going; returns when they are over and their ratings are sent."""
        await asyncio.gather(*(self._seat() for _ in range(min(self._crowd.talking, self._crowd.users))))
        self.stop.set()  # nobody else will come: ratings need not wait any longer
        await asyncio.gather(*self._pending)

    async def _seat(self) -> None:
        """One place at the desk: a user, then the next."""
        limit = self._crowd.episodes
        while not self.stop.is_set() and (limit is None or self.counters.begun < limit):
            index = self.counters.begun
            self.counters.begun += 1
            user = self._idle.pop(self._choice.randrange(len(self._idle)))
            try:
                await self._episode(user, index)
            finally:
                self._idle.append(user)

    async def _episode(self, user: str, index: int) -> None:
        draw = random.Random(f"user:{self._seed}:{index}")
        wanted = task("train", LIVE_SEEDS + self._seed * 1_000_000 + index)
        line = EpisodeLine(user, wanted.seed, index, now_ms(), len(wanted.requests))
        habits = self._crowd.habits
        ratings = await run_user(
            line, wanted, talk=self._talk, draw=draw, habits=habits, stopping=self.stop.is_set
        )
        for rating in ratings:
            self._later(rating, self._delay(draw))
        if line.episode_id and draw.random() < habits.ends:
            line.ended = await self._talk.end(line.episode_id)
        self._count(line)
        self._ledger.episode(line)
        if line.failure:
            await self._wait(1.0)  # do not hammer a server that is in trouble

    def _delay(self, draw: random.Random) -> float:
        late = draw.random() < self._crowd.very_late
        return self._crowd.very_late_s if late else draw.uniform(*self._crowd.rating_delay_s)

    def _later(self, rating: RatingLine, delay_s: float) -> None:
        sending = asyncio.create_task(self._rate(rating, delay_s))
        self._pending.add(sending)
        sending.add_done_callback(self._pending.discard)

    async def _rate(self, rating: RatingLine, delay_s: float) -> None:
        await self._wait(delay_s)
        sent = await self._talk.rate(rating.response_id, rating.value, user=rating.user)
        rating.status, rating.attempts, rating.failure = sent.status, sent.attempts, sent.failure
        rating.feedback_id, rating.sent_at = sent.feedback_id, now_ms()
        self.counters.ratings_sent += rating.accepted
        self.counters.ratings_failed += not rating.accepted
        self.counters.flipped += rating.accepted and rating.flipped
        self._ledger.rating(rating)

    async def _wait(self, seconds: float) -> None:
        """A pause that the end of the run cuts short."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    def _count(self, line: EpisodeLine) -> None:
        self.counters.episodes += 1
        self.counters.succeeded += line.success is True
        self.counters.rated += line.rated
        self.counters.reacted += bool(line.complaints or line.thanks)
        self.counters.requests += len(line.answers)
        self.counters.failed += line.failure is not None
