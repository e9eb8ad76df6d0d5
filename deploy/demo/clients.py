"""What only the simulated clients know, and whether it agrees with what the product recorded."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.facts import Facts, effective_ratings
from feedback.schemas import Status

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Clients:
    """The two kinds of lines of `clients.jsonl`."""

    episodes: Sequence[Line]
    ratings: Sequence[Line]

    @property
    def accepted(self) -> list[Line]:
        """Ratings the server said it had stored."""
        return [line for line in self.ratings if 200 <= line["status"] < 300]

    @property
    def cut(self) -> list[Line]:
        """Episodes that a failure ended."""
        return [line for line in self.episodes if line["failure"] is not None]

    @property
    def episode_ids(self) -> set[str]:
        """Every id that a client was told."""
        return {line["episode_id"] for line in self.episodes if line["episode_id"]}

    @property
    def answers(self) -> list[Line]:
        """Every reply that a client read to its end."""
        return [answer for line in self.episodes for answer in line["answers"]]


def read_clients(path: Path) -> Clients:
    """Read the ledger; a torn last line (the demo was killed) is left out."""
    lines = [json.loads(text) for text in path.read_text().splitlines() if text.endswith("}")]
    return Clients(
        episodes=[line for line in lines if line["kind"] == "episode"],
        ratings=[line for line in lines if line["kind"] == "rating"],
    )


def rating_counts(clients: Clients, facts: Facts) -> dict[str, int]:
    """Sent, joined, lost and doubled thumbs, episode by episode: each accepted one must stand in its experience, once."""
    effective = effective_ratings(facts).values()
    wanted = Counter(given.episode_id for given in effective)
    joined = Counter({one.episode_id: one.ratings for one in facts.experiences.values()})
    sent = {line["feedback_id"] for line in clients.accepted}
    return {
        "sent": len(clients.accepted),
        "joined": joined.total(),
        "lost": len(sent - {given.id for given in effective}) + (wanted - joined).total(),
        "doubled": (joined - wanted).total() + len(clients.accepted) - len(sent),
    }


def failed_requests(clients: Clients, facts: Facts) -> int:
    """Requests that failed for the product or for their client; what both saw counts once."""
    recorded: Counter[str] = Counter(
        i.episode_id for i in facts.interactions.values() if i.status is Status.FAILED
    )
    named: Counter[str] = Counter(line["episode_id"] for line in clients.cut if line["episode_id"])
    # A client whose first request failed was never told its episode's id.
    unnamed = sum(not line["episode_id"] for line in clients.cut)
    nobodys = sum(count for episode, count in recorded.items() if episode not in clients.episode_ids)
    return (recorded | named).total() + max(0, unnamed - nobodys)


def mismatches(clients: Clients, facts: Facts) -> list[str]:
    """Every way in which the clients' story and the product's differ; empty when they agree."""
    found = [*_not_kept(clients, facts), *_not_done(clients, facts)]
    if facts.conflicting:
        found.append(f"{facts.conflicting} messages were sent again with other content")
    return found


def _not_kept(clients: Clients, facts: Facts) -> Iterator[str]:
    """What clients were told and the product holds otherwise, or not at all."""
    for answer in clients.answers:
        record = facts.interactions.get(answer["response_id"])
        if record is None:
            yield f"{answer['response_id']}: a client was answered, nothing was recorded"
        elif record.episode_id != answer["episode_id"]:
            yield f"{answer['response_id']}: recorded in another episode than the client was told"
        elif record.turns and record.turns[-1].adapter_version != answer["adapter_version"]:
            yield f"{answer['response_id']}: recorded under another version than the client was told"
    given = {feedback.id: feedback for feedback in facts.feedback.values()}
    for line in clients.accepted:
        stored = given.get(line["feedback_id"])
        if stored is None:
            yield f"{line['feedback_id']}: accepted from a client, not on the bus"
        elif stored.response_id != line["response_id"] or stored.value != line["value"]:
            yield f"{line['feedback_id']}: the bus holds another target or value than the client sent"
    for line in clients.episodes:
        if line["answers"] and line["episode_id"] not in facts.experiences:
            yield f"{line['episode_id']}: a client's episode became no experience"


def _not_done(clients: Clients, facts: Facts) -> Iterator[str]:
    """What the product holds and no client did. What a client lost on the way is one of its failures, not this."""
    answered = {answer["response_id"] for answer in clients.answers}
    cut = {line["episode_id"] for line in clients.cut}
    for response_id, record in facts.interactions.items():
        is_failure = record.status is Status.FAILED or record.episode_id in cut
        if response_id not in answered and not is_failure:
            yield f"{response_id}: recorded, no client was given this reply"
    failed = {i.episode_id for i in facts.interactions.values() if i.status is Status.FAILED}
    for episode_id in facts.experiences:
        if episode_id not in clients.episode_ids | failed:
            yield f"{episode_id}: an experience of no client's episode"
    told = {line["feedback_id"] for line in clients.accepted}
    for feedback_id in dict.fromkeys(given.id for given in facts.feedback.values()):
        if feedback_id not in told:
            yield f"{feedback_id}: feedback that no client was told is stored"


def success_by_arm(clients: Clients, facts: Facts) -> dict[str, list[tuple[int, float]]]:
    """For each arm, (end of the episode in ms, 1.0 or 0.0 true success) in time order."""
    arm_of = {experience.episode_id: experience.arm for experience in facts.experiences.values()}
    by_arm: dict[str, list[tuple[int, float]]] = {}
    for line in clients.episodes:
        arm = arm_of.get(line["episode_id"])
        if arm is not None and line["success"] is not None:
            by_arm.setdefault(arm, []).append((line["over_at"], float(line["success"])))
    return {arm: sorted(points) for arm, points in sorted(by_arm.items())}


def running_mean(
    points: Sequence[tuple[int, float]], *, window: int, began: int
) -> list[tuple[float, float]]:
    """(minutes since `began` in ms, mean of the last `window` values), from the first full window on."""
    values = [value for _, value in points]
    return [
        ((points[end - 1][0] - began) / 60_000, sum(values[end - window : end]) / window)
        for end in range(window, len(values) + 1, max(1, window // 8))
    ]
