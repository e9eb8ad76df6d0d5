"""From the bus into the trainer's state: experiences to buffer and replay, splits in order, positions moved on.

Invariant: positions and what was read at them are saved in the same checkpoint; nothing is acknowledged anywhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field

from feedback.bus import Partition, Record
from feedback.schemas import (
    DEAD_LETTERS,
    EXPERIENCES,
    DeadLetter,
    Experience,
    TrafficSplit,
    Unreadable,
)
from online_trainer.buffer import Buffer
from online_trainer.lessons import Replay
from online_trainer.state import Letter


@dataclass(frozen=True)
class Readable:
    """What the model can read at all: ids below its vocabulary, rows up to its length."""

    vocabulary: int
    length: int

    def checked(self, experience: Experience) -> Experience:
        """The same, or Unreadable: such an episode would stop every pass it is in."""
        for priced in experience.turns:
            ids = priced.turn.prompt_ids + priced.turn.token_ids
            if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
                raise Unreadable("turns: ids outside the model's vocabulary")
            if len(ids) > self.length:
                raise Unreadable("turns: longer than the model reads")
        return experience


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
                found.experiences += _take(
                    readable.checked(Experience.from_bytes(record.value)), agent, buffer, replay
                )
            else:
                split = TrafficSplit.from_bytes(record.value)
                if split.agent == agent:
                    found.splits.append(split)
        except Unreadable as error:
            found.dead.append(_dead_letter(record, str(error), now_ms))
    return found


def _take(experience: Experience, agent: str, buffer: Buffer, replay: Replay) -> int:
    if experience.agent != agent:
        return 0
    if experience.withdrawn:
        buffer.withdraw(experience.episode_id)
        replay.withdraw(experience.episode_id)
        return 1
    buffer.add(experience)
    if _teaches(experience):
        replay.add(experience)
    return 1


def _teaches(experience: Experience) -> bool:
    """Whether reward model and critic may learn from it: real traffic whose turns all have a state to value."""
    return (
        "evaluation" not in experience.flags
        and bool(experience.turns)
        and all(priced.turn.prompt_ids for priced in experience.turns)
    )


def _dead_letter(record: Record, reason: str, now_ms: int) -> Letter:
    letter = DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason,
        value_base64=base64.b64encode(record.value).decode() if record.value else None,
        at=now_ms,
    )
    return Letter(topic=DEAD_LETTERS, key=record.key or "", value=letter.to_bytes().decode(), at=now_ms)
