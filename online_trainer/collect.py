"""From the bus into the trainer's state: experiences to buffer and replay, splits in order, positions moved on.

Invariant: positions and what was read at them are saved in the same checkpoint; nothing is acknowledged anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from feedback.bus import Partition, Record
from feedback.dead_letters import dead_letter, letter_key
from feedback.schemas import DEAD_LETTERS, EXPERIENCES, Experience, TrafficSplit, Unreadable
from online_trainer.buffer import Buffer
from online_trainer.lessons import Replay
from online_trainer.state import Letter


@dataclass(frozen=True)
class Readable:
    """What the model can read at all: ids below its vocabulary, rows up to its length."""

    vocabulary: int
    length: int

    def check(self, experience: Experience) -> None:
        """Raise Unreadable for an episode that would stop every pass it is in."""
        for priced in experience.turns:
            ids = priced.turn.prompt_ids + priced.turn.token_ids
            if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
                raise Unreadable("turns: ids outside the model's vocabulary")
            if len(ids) > self.length:
                raise Unreadable("turns: longer than the model reads")


@dataclass
class Collected:
    """What one look at the bus brought besides experiences."""

    experiences: int = 0
    splits: list[TrafficSplit] = field(default_factory=list)
    dead: list[Letter] = field(default_factory=list)


def collect(
    records: Iterable[Record],
    *,
    agent: str,
    buffer: Buffer,
    replay: Replay,
    positions: dict[Partition, int],
    readable: Readable,
    now_ms: int,
) -> Collected:
    """Take in records. Another agent's are passed over, unreadable ones are answered with a dead letter."""
    found = Collected()
    for record in records:
        positions[record.topic, record.partition] = record.offset + 1
        try:
            if record.topic == EXPERIENCES:
                experience = Experience.from_bytes(record.value)
                if experience.agent == agent:
                    readable.check(experience)
                    found.experiences += 1
                    _take(experience, buffer, replay)
            else:
                split = TrafficSplit.from_bytes(record.value)
                if split.agent == agent:
                    found.splits.append(split)
        except Unreadable as error:
            found.dead.append(_letter(record, str(error), now_ms))
    return found


def _take(experience: Experience, buffer: Buffer, replay: Replay) -> None:
    if experience.withdrawn:
        buffer.withdraw(experience.episode_id)
        replay.withdraw(experience.episode_id)
        return
    buffer.add(experience)
    if _teaches(experience):
        replay.add(experience)


def _teaches(experience: Experience) -> bool:
    """Whether reward model and critic may learn from it: real traffic whose turns all have a state to value."""
    return (
        "evaluation" not in experience.flags
        and bool(experience.turns)
        and all(priced.turn.prompt_ids for priced in experience.turns)
    )


def _letter(record: Record, reason: str, now_ms: int) -> Letter:
    value = dead_letter(record, reason, at=now_ms).to_bytes().decode()
    return Letter(topic=DEAD_LETTERS, key=letter_key(record), value=value, at=now_ms)
