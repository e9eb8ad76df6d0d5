"""Joins one episode's records into what is known about it. Pure: a set of records gives one answer.

The order in which records came, repeats among them and restarts in between change nothing; time is the records' own,
and the clock only says how long nobody has added to the episode.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from feedback.metric_section import Metric, metric_named
from feedback.schemas import Comparison, Correction, EpisodeEnd, Feedback, Interaction, Withdrawal

EpisodeMessage = Interaction | EpisodeEnd | Withdrawal | Feedback


@dataclass(frozen=True, slots=True)
class Stamped:
    """A message with its record's timestamp (ms)."""

    at: int
    message: EpisodeMessage

    @property
    def key(self) -> str:
        return record_key(self.message)


@dataclass(frozen=True, slots=True)
class Rating:
    """One person's standing opinion of one target."""

    response_id: str | None
    tool_call_id: str | None
    name: str
    score: float
    rater: str
    at: int


@dataclass(frozen=True, slots=True)
class Joined:
    """An episode at its newest close. `known_at` is the newest record time it takes in; `keys` name all its records with their times."""

    episode_id: str
    interactions: tuple[Interaction, ...]
    ratings: tuple[Rating, ...]
    keys: tuple[str, ...]
    revision: int
    closed_at: int
    known_at: int
    withdrawn: bool = False
    comparisons: tuple[Comparison, ...] = ()
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinRules:
    """When an episode closes and which ratings count, from the agent file."""

    metrics: Mapping[str, Metric]
    idle_ms: int


def record_key(message: EpisodeMessage) -> str:
    """What makes a record the same one when it comes again, within its episode."""
    if isinstance(message, Interaction):
        return f"i/{message.response_id}"
    if isinstance(message, Feedback):
        return f"f/{message.id}/{message.revision:09d}"
    return f"e/{message.ended_at}" if isinstance(message, EpisodeEnd) else "w"


def join(records: Iterable[Stamped], rules: JoinRules, *, now: int) -> Joined | None:
    """The episode as of `now` (ms); None while it is open, or before its first interaction came."""
    unique: dict[str, Stamped] = {}
    for record in records:
        kept = unique.get(record.key)
        if kept is None or record.at < kept.at:
            unique[record.key] = record
    ordered = sorted(unique.values(), key=_time_order)
    replied = _reply_times(ordered)
    if not replied:
        return None
    walk = _Walk(rules=rules, replied=replied)
    for record in ordered:
        walk.step(record)
    if not walk.finish(now):
        return None
    interactions = [record.message for record in ordered if isinstance(record.message, Interaction)]
    interactions.sort(key=lambda each: (each.index, each.started_at, each.response_id))
    return Joined(
        episode_id=interactions[0].episode_id,
        interactions=tuple(interactions),
        ratings=effective(walk.opinions.values()),
        comparisons=comparisons(walk.opinions.values()),
        corrections=corrections(walk.opinions.values()),
        keys=tuple(sorted(f"{record.key}@{record.at}" for record in ordered)),
        revision=walk.revision,
        closed_at=walk.closed_at,
        known_at=max(ordered[-1].at, walk.closed_at),
        withdrawn=walk.withdrawn,
    )


def effective(opinions: Iterable[Stamped]) -> tuple[Rating, ...]:
    """Of the opinions that came in time, those with a score that stand."""
    ratings = [_rating(record) for record in opinions]
    return tuple(
        sorted(
            (rating for rating in ratings if rating is not None),
            key=lambda rating: (
                rating.at,
                rating.response_id or "",
                rating.tool_call_id or "",
                rating.name,
                rating.rater,
            ),
        )
    )


def comparisons(opinions: Iterable[Stamped]) -> tuple[Comparison, ...]:
    """Choices between two answers to the same conversation, in the order in which they were made."""
    found = []
    for record in sorted(opinions, key=_time_order):
        feedback = _feedback(record)
        if feedback.op != "delete" and feedback.comparison is not None and feedback.comparison.same_question:
            pair = feedback.comparison.model_dump(exclude={"same_question"})
            found.append(Comparison(**pair, rater=feedback.rater))
    return tuple(found)


def corrections(opinions: Iterable[Stamped]) -> tuple[Correction, ...]:
    """What replies should have said: of each person the newest one, under whatever name it came."""
    found: dict[tuple[str, str | None, str], Correction] = {}
    for record in sorted(opinions, key=_time_order):
        feedback = _feedback(record)
        if feedback.op == "delete" or feedback.correction is None or feedback.response_id is None:
            continue
        target = (feedback.response_id, feedback.tool_call_id, feedback.rater)
        found.pop(target, None)  # the newest also stands last
        found[target] = Correction(
            response_id=feedback.response_id,
            tool_call_id=feedback.tool_call_id,
            text=feedback.correction,
            rater=feedback.rater,
        )
    return tuple(found.values())


def _rating(record: Stamped) -> Rating | None:
    feedback = _feedback(record)
    if feedback.op == "delete" or feedback.score is None:
        return None
    return Rating(
        response_id=feedback.response_id,
        tool_call_id=feedback.tool_call_id,
        name=feedback.name,
        score=feedback.score,
        rater=feedback.rater,
        at=record.at,
    )


def _in_time(record: Stamped, *, rules: JoinRules, replied: Mapping[str, int]) -> bool:
    """Whether it is of a known metric and a known reply, and came within the metric's window on either side of it."""
    feedback = _feedback(record)
    metric = metric_named(rules.metrics, feedback.name)
    reply_at = replied.get(feedback.response_id) if feedback.response_id else max(replied.values())
    return metric is not None and reply_at is not None and abs(record.at - reply_at) <= metric.window * 1000


def _time_order(record: Stamped) -> tuple[int, int, str]:
    """Within one millisecond a reply comes before the opinion of it, and the end after both."""
    kinds = (Interaction, Feedback, EpisodeEnd, Withdrawal)
    return record.at, kinds.index(type(record.message)), record.key


def _reply_times(records: Sequence[Stamped]) -> dict[str, int]:
    """When each reply of the episode was recorded."""
    return {
        record.message.response_id: record.at for record in records if isinstance(record.message, Interaction)
    }


def _natural_key(feedback: Feedback) -> tuple[str | None, ...]:
    """Whose opinion of what: the newest revision of one key counts, whatever ids it came under.

    A pair is the same one whichever of the two was chosen.
    """
    pair = feedback.comparison
    return (
        feedback.response_id,
        feedback.tool_call_id,
        feedback.name,
        feedback.source.type,
        feedback.rater,
        *(sorted((pair.chosen, pair.rejected)) if pair is not None else ()),
    )


def _newer(feedback: Feedback, than: Feedback) -> bool:
    """Within one id the revision decides; between ids the server's order does."""
    if feedback.id == than.id:
        return feedback.revision > than.revision
    return (feedback.received_at, feedback.revision, feedback.id) > (
        than.received_at,
        than.revision,
        than.id,
    )


@dataclass(slots=True)
class _Walk:
    """Goes through an episode's records in the order of their time, and counts how often its price became new.

    It becomes new when the episode closes (again), when an opinion changes after that, and when it is withdrawn.
    """

    rules: JoinRules
    replied: Mapping[str, int]
    opinions: dict[tuple[str | None, ...], Stamped] = field(default_factory=dict)
    revision: int = 0
    closed_at: int = 0
    closes_at: int | None = None
    withdrawn: bool = False

    def step(self, record: Stamped) -> None:
        """Take in one record; after a withdrawal nothing counts any more."""
        if self.withdrawn:
            return
        if self.closes_at is not None and record.at >= self.closes_at:
            self._close(self.closes_at)
        message = record.message
        if isinstance(message, Feedback):
            if self._opine(record, message) and self.revision and self.closes_at is None:
                self.revision += 1
        elif isinstance(message, Interaction):
            self.closes_at = max(self.closes_at or 0, record.at + self.rules.idle_ms)
        elif isinstance(message, EpisodeEnd):
            if self.closes_at is not None:
                self._close(record.at)
        else:
            self.withdrawn = True
            self._close(record.at)

    def finish(self, now: int) -> bool:
        """Whether the episode is closed at `now`."""
        if self.closes_at is not None and now >= self.closes_at:
            self._close(self.closes_at)
        return self.withdrawn or self.closes_at is None

    def _close(self, at: int) -> None:
        self.revision, self.closed_at, self.closes_at = self.revision + 1, at, None

    def _opine(self, record: Stamped, feedback: Feedback) -> bool:
        """Note an opinion; whether what counts is now different.

        After the window what was said stands: a later change is not learned from. Taking it back always works.
        """
        if feedback.op != "delete" and not _in_time(record, rules=self.rules, replied=self.replied):
            return False
        key = _natural_key(feedback)
        before = self.opinions.get(key)
        if before is not None and not _newer(feedback, _feedback(before)):
            return False
        self.opinions[key] = record
        return (_counted(before) if before is not None else None) != _counted(record)


def _counted(record: Stamped) -> tuple[object, ...] | None:
    """What of an opinion can be learned from; None: nothing."""
    feedback = _feedback(record)
    said = (feedback.score, feedback.correction, feedback.comparison)
    return None if feedback.op == "delete" or said == (None, None, None) else said


def _feedback(record: Stamped) -> Feedback:
    assert isinstance(record.message, Feedback)
    return record.message
