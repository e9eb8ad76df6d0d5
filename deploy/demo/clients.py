"""What only the simulated clients know, and whether it agrees with what the product recorded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.facts import Facts, effective_ratings

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
    """Sent, joined, lost and doubled thumbs: each accepted one must stand in exactly one experience, once."""
    effective = {given.id for given in effective_ratings(facts).values()}
    sent = {line["feedback_id"] for line in clients.accepted}
    joined = sum(experience.ratings for experience in facts.experiences.values())
    return {
        "sent": len(clients.accepted),
        "joined": joined,
        "lost": len(sent - effective) + max(0, len(effective) - joined),
        "doubled": max(0, joined - len(effective)) + len(clients.accepted) - len(sent),
    }


def mismatches(clients: Clients, facts: Facts) -> list[str]:
    """Every way in which the clients' story and the product's differ; empty when they agree."""
    found = []
    for answer in clients.answers:
        record = facts.interactions.get(answer["response_id"])
        if record is None:
            found.append(f"{answer['response_id']}: a client was answered, nothing was recorded")
        elif record.episode_id != answer["episode_id"]:
            found.append(f"{answer['response_id']}: recorded in another episode than the client was told")
        elif record.turns and record.turns[-1].adapter_version != answer["adapter_version"]:
            found.append(f"{answer['response_id']}: recorded under another version than the client was told")
    given = {feedback.id: feedback for feedback in facts.feedback.values()}
    for line in clients.accepted:
        stored = given.get(line["feedback_id"])
        if stored is None:
            found.append(f"{line['feedback_id']}: accepted from a client, not on the bus")
        elif stored.response_id != line["response_id"] or stored.value != line["value"]:
            found.append(f"{line['feedback_id']}: the bus holds another target or value than the client sent")
    for line in clients.episodes:
        if line["answers"] and line["episode_id"] not in facts.experiences:
            found.append(f"{line['episode_id']}: a client's episode became no experience")
    if facts.conflicting:
        found.append(f"{facts.conflicting} messages were sent again with other content")
    return found


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
