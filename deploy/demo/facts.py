"""What the product did, read back from Kafka alone. Pure once the records are there: nothing here asks the simulator."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from feedback.bus import Bus, Record, read_to_the_end
from feedback.schemas import (
    CREDITS,
    EXPERIENCES,
    FEEDBACK,
    INTERACTIONS,
    TRAFFIC_SPLITS,
    UPDATES,
    Credit,
    Decision,
    Experience,
    Feedback,
    Interaction,
    OutcomeSource,
    TrafficSplit,
    Update,
    read_episode_record,
)

SILENCE_S = 60.0
"""How long the bus may say nothing before its topics cannot be told."""


@dataclass
class Facts:
    """Every message of the run, with repeats of the at-least-once stream already dropped."""

    interactions: dict[str, Interaction] = field(default_factory=dict)
    feedback: dict[tuple[str, int], Feedback] = field(default_factory=dict)
    experiences: dict[str, Experience] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    credits: dict[tuple[str, str], Credit] = field(default_factory=dict)
    splits: list[TrafficSplit] = field(default_factory=list)
    conflicting: int = 0


def collect(bus: Bus) -> Facts:
    """Read the six topics from the beginning to their present end."""
    facts = Facts()
    values = _values(bus, INTERACTIONS, FEEDBACK, EXPERIENCES, UPDATES, CREDITS, TRAFFIC_SPLITS)
    for value in values[INTERACTIONS]:
        record = read_episode_record(value)
        if isinstance(record, Interaction):
            facts.conflicting += int(facts.interactions.setdefault(record.response_id, record) != record)
    for value in values[FEEDBACK]:
        given = Feedback.from_bytes(value)
        facts.conflicting += int(facts.feedback.setdefault((given.id, given.revision), given) != given)
    facts.experiences = newest_of(values[EXPERIENCES])
    for value in values[UPDATES]:
        update = Update.from_bytes(value)
        known_update = facts.updates.get(update.update_id)
        if known_update is None or update.version is not None:
            facts.updates[update.update_id] = update
    for value in values[CREDITS]:
        credit = Credit.from_bytes(value)
        facts.credits[credit.episode_id, credit.update_id] = credit
    splits = {split.generation: split for split in map(TrafficSplit.from_bytes, values[TRAFFIC_SPLITS])}
    facts.splits = [splits[generation] for generation in sorted(splits)]
    return facts


def experiences(bus: Bus) -> dict[str, Experience]:
    """The newest revision of each episode, in the order in which episodes first closed."""
    return newest_of(_values(bus, EXPERIENCES)[EXPERIENCES])


def newest_of(values: Iterable[bytes]) -> dict[str, Experience]:
    """The same from the topic's records, in their order."""
    newest: dict[str, Experience] = {}
    for value in values:
        experience = Experience.from_bytes(value)
        known = newest.get(experience.episode_id)
        if known is None or experience.revision >= known.revision:
            newest[experience.episode_id] = experience
    return newest


def _values(bus: Bus, *topics: str) -> dict[str, list[bytes]]:
    """Everything in these topics. BusError when nothing is heard from the bus."""
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}

    def take(records: Sequence[Record]) -> None:
        for record in records:
            if record.value:
                found[record.topic].append(record.value)

    reader = bus.reader(topics)
    try:
        reader.seek({})
        read_to_the_end(reader, take, silence_s=SILENCE_S)
    finally:
        reader.close()
    return found


def effective_ratings(facts: Facts) -> dict[tuple[str, str, str], Feedback]:
    """The newest rating of each (target, name, rater) that was not deleted: what must be joined, once."""
    newest: dict[tuple[str, str, str], Feedback] = {}
    for given in facts.feedback.values():
        key = (given.response_id or given.episode_id, given.name, given.rater)
        if key not in newest or given.revision > newest[key].revision:
            newest[key] = given
    return {key: given for key, given in newest.items() if given.op != "delete"}


def episode_counts(facts: Facts) -> dict[str, Any]:
    """How many episodes there were, who reacted, which were trained, and why each of the others was not."""
    experiences = facts.experiences.values()
    trained = _trainings(facts)
    credited = {
        c.episode_id: next((turn.unused for turn in c.turns if turn.unused), "no_turns")
        for c in facts.credits.values()
    }
    untrainable = Counter(
        (e.reason or "unknown") if not e.trainable else credited.get(e.episode_id, "waiting")
        for e in experiences
        if e.episode_id not in trained
    )
    return {
        "total": len(facts.experiences),
        "rated": sum(e.ratings > 0 for e in experiences),
        "reacted": sum(e.outcome_source == OutcomeSource.IMPLICIT for e in experiences),
        "silent": sum(e.outcome is None for e in experiences),
        "trained": len(trained),
        "untrainable": dict(untrainable.most_common()),
    }


def trained_twice(facts: Facts) -> list[str]:
    """Episodes that moved the policy in more than one update; there must be none."""
    return [f"{name}: trained in {count} updates" for name, count in _trainings(facts).items() if count > 1]


def _trainings(facts: Facts) -> Counter[str]:
    """In how many updates each trained episode had a turn that counted."""
    return Counter(c.episode_id for c in facts.credits.values() if any(t.unused is None for t in c.turns))


def request_counts(facts: Facts) -> dict[str, int]:
    """Replies, and those made by two versions."""
    interactions = facts.interactions.values()
    return {
        "total": len(facts.interactions),
        "mixed_version": sum(len({turn.adapter_version for turn in i.turns}) > 1 for i in interactions),
    }


def update_counts(facts: Facts) -> dict[str, int]:
    """Decisions of the trainer."""
    counted = Counter(update.decision for update in facts.updates.values())
    return {
        decision.value: counted[decision]
        for decision in (Decision.ACCEPTED, Decision.SHRUNK, Decision.REFUSED)
    }


def version_rows(facts: Facts, extra: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per numbered version; `extra` are versions a person offered."""
    verdicts = {v.version: v.verdict.value for split in facts.splits for v in split.verdicts}
    rows = [
        {
            "version": update.version,
            "parent": update.parent,
            "k3_old": update.measures.get("k3_old", 0.0),
            "kl_ref": update.measures.get("kl_ref", 0.0),
            "verdict": verdicts.get(update.version, ""),
        }
        for update in facts.updates.values()
        if update.version is not None
    ]
    named = {row["version"] for row in rows}
    rows += [
        {"version": v, "parent": None, "k3_old": 0.0, "kl_ref": 0.0, "verdict": verdicts.get(v, "")}
        for v in extra
        if v not in named
    ]
    return sorted(rows, key=lambda row: str(row["version"]))


def update_rows(facts: Facts) -> list[dict[str, Any]]:
    """One row per update in time order, for the report."""
    return [
        {
            "decision": update.decision.value,
            "episodes": update.episodes,
            "rated": update.rated,
            "k3_old": update.measures.get("k3_old", 0.0),
            "kl_ref": update.measures.get("kl_ref", 0.0),
            "reasons": update.reasons,
        }
        for update in sorted(facts.updates.values(), key=lambda update: update.at)
    ]
