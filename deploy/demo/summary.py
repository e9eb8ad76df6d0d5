"""The demo's summary: every figure worked out from what was recorded, none assumed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from deploy.demo.acts import Sabotage
from deploy.demo.clients import (
    Clients,
    failed_requests,
    mismatches,
    rating_counts,
    running_mean,
    success_by_arm,
)
from deploy.demo.facts import (
    Facts,
    episode_counts,
    request_counts,
    trained_twice,
    update_counts,
    update_rows,
    version_rows,
)
from deploy.demo.heldout import Held
from deploy.demo.report import Point, Series
from deploy.evaluate import Evaluation
from deploy.intervals import Interval, mean_interval, paired_interval
from deploy.stack.machine import Machine
from feedback.schemas import Verdict


@dataclass(frozen=True)
class Inputs:
    """Everything the summary is made of."""

    seed: int
    machine: Machine
    wall_s: float
    setup_s: float
    facts: Facts
    clients: Clients
    held: Held
    sabotage: Sabotage | None


def summarise(given: Inputs) -> dict[str, Any]:
    """The JSON of `--json`, in its documented order."""
    facts, clients = given.facts, given.clients
    offered = (given.sabotage.version,) if given.sabotage else ()
    episodes = episode_counts(facts)
    return {
        "wall_s": round(given.wall_s, 1),
        "setup_s": round(given.setup_s, 1),
        "seed": given.seed,
        "machine": {"cores": given.machine.cores, "bf16": given.machine.has_bfloat16},
        "heldout": heldout(given.held, seed=given.seed),
        "holdout": thirds(success_by_arm(clients, facts).get("holdout", []), seed=given.seed),
        "episodes": {
            **{key: episodes[key] for key in ("total", "rated", "reacted", "silent")},
            "flipped": sum(bool(line["flipped"]) for line in clients.accepted),
            "trained": episodes["trained"],
            "per_s": round(rate(clients), 3),
            "untrainable": episodes["untrainable"],
        },
        "requests": requests(clients, facts),
        "ratings": rating_counts(clients, facts),
        "updates": update_counts(facts),
        "versions": version_rows(facts, offered),
        "canaries": canaries(facts, given.sabotage),
        "mismatches": [*mismatches(clients, facts), *trained_twice(facts)],
    }


def shortcomings(summary: Mapping[str, Any]) -> list[str]:
    """What must never be, whatever was learned: any of these fails the demo."""
    found = list(summary["mismatches"])
    for section, names in (("requests", ("failed", "mixed_version")), ("ratings", ("lost", "doubled"))):
        found += [f"{section}: {summary[section][name]} {name}" for name in names if summary[section][name]]
    if not summary["updates"]["accepted"] + summary["updates"]["shrunk"]:
        found.append("no update was accepted")
    if summary["canaries"]["sabotage_rolled_back"] is False:
        found.append("the sabotaged candidate was not rolled back")
    if summary["canaries"]["sabotage_rolled_back"] is None and not summary["canaries"]["promoted"]:
        found.append("no candidate came to be promoted")
    first, last = (summary["holdout"].get(third) for third in ("first", "last"))
    if first and last and (last["lo"] > first["hi"] or first["lo"] > last["hi"]):
        found.append(
            f"the holdout's success went from {first['mean']:.2f} to {last['mean']:.2f}: it is frozen, so something else answered"
        )
    return found


def heldout(held: Held, *, seed: int) -> dict[str, Any]:
    """Success of each version with its interval, and the paired gains over the start."""

    def gain(after: Evaluation) -> dict[str, float]:
        return paired_interval(after.success, held.start.success, seed=seed).as_json()

    return {
        "tasks": held.start.tasks,
        "samples": held.start.samples,
        "start": held.start.interval().as_json(),
        "start_greedy": held.greedy.interval().as_json(),
        "head": held.head.interval().as_json(),
        "champion": held.champion.interval().as_json(),
        "gain_head": gain(held.head),
        "gain_champion": gain(held.champion),
    }


def thirds(points: Sequence[tuple[int, float]], *, seed: int) -> dict[str, Any]:
    """Success of the holdout's users in the first and the last third of the run; None where there is nothing."""
    third = len(points) // 3
    if third == 0:
        return {"first": None, "last": None}
    first, last = ([value for _, value in part] for part in (points[:third], points[-third:]))
    intervals: Mapping[str, Interval] = {
        "first": mean_interval(first, seed=seed),
        "last": mean_interval(last, seed=seed),
    }
    return {name: interval.as_json() for name, interval in intervals.items()}


def requests(clients: Clients, facts: Facts) -> dict[str, int]:
    """Replies, and what went wrong with them."""
    counted = request_counts(facts)
    return {
        "total": counted["total"],
        "failed": failed_requests(clients, facts),
        "mixed_version": counted["mixed_version"],
    }


def canaries(facts: Facts, sabotage: Sabotage | None) -> dict[str, Any]:
    """Verdicts of all versions (one promoted and later taken back counts as both), and how many episodes met the sabotage."""
    told = {(v.version, v.verdict) for split in facts.splits for v in split.verdicts}
    counted = [verdict for _, verdict in told]
    met = {
        i.episode_id
        for i in facts.interactions.values()
        if sabotage and any(turn.adapter_version == sabotage.version for turn in i.turns)
    }
    return {
        "promoted": counted.count(Verdict.PROMOTED),
        "rolled_back": counted.count(Verdict.ROLLED_BACK),
        "superseded": counted.count(Verdict.SUPERSEDED),
        "sabotage_rolled_back": sabotage.rolled_back if sabotage else None,
        "sabotage_episodes_hit": len(met),
    }


def rate(clients: Clients) -> float:
    """Episodes a second from the first to the last."""
    began = [line["began_at"] for line in clients.episodes]
    over = [line["over_at"] for line in clients.episodes]
    return 1000 * len(over) / max(1, max(over) - min(began)) if over else 0.0


def series(given: Inputs) -> Series:
    """What the report draws."""
    measured = [(0, given.held.start), *given.held.curve]
    curve = [Point(rated, **evaluation.interval().as_json()) for rated, evaluation in measured]
    by_arm = success_by_arm(given.clients, given.facts)
    began = min((at for points in by_arm.values() for at, _ in points), default=0)
    live = {
        arm: running_mean(points, window=min(60, max(1, len(points) // 3)), began=began)
        for arm, points in by_arm.items()
    }
    return Series(head=curve, live=live, updates=update_rows(given.facts))


def table(summary: Mapping[str, Any]) -> Table:
    """The end of the demo in the terminal."""
    drawn = Table(title="what came of it", show_header=False, title_justify="left")
    held, canary = summary["heldout"], summary["canaries"]
    for name in ("start", "start_greedy", "head", "champion", "gain_head", "gain_champion"):
        drawn.add_row(f"held-out {name.replace('_', ' ')}", spoken(held[name]))
    if summary["holdout"]["first"]:
        both = f"{spoken(summary['holdout']['first'])} then {spoken(summary['holdout']['last'])}"
        drawn.add_row("holdout users, first and last third", both)
    episodes, ratings, updates = summary["episodes"], summary["ratings"], summary["updates"]
    drawn.add_row("episodes", f"{episodes['total']}, {episodes['rated']} rated, {episodes['per_s']} a second")
    drawn.add_row("requests", "{total}, {failed} failed, {mixed_version} mixed".format(**summary["requests"]))
    drawn.add_row("ratings", "{sent} sent, {joined} joined, {lost} lost, {doubled} doubled".format(**ratings))
    drawn.add_row("updates", "{accepted} accepted, {shrunk} shrunk, {refused} refused".format(**updates))
    drawn.add_row(
        "canaries", "{promoted} promoted, {rolled_back} rolled back, {superseded} superseded".format(**canary)
    )
    if canary["sabotage_rolled_back"] is not None:
        said = "rolled back" if canary["sabotage_rolled_back"] else "NOT rolled back"
        drawn.add_row("sabotage", f"{said} after {canary['sabotage_episodes_hit']} episodes met it")
    drawn.add_row("time", f"{summary['wall_s'] / 60:.1f} min")
    return drawn


def spoken(interval: Mapping[str, float]) -> str:
    """`34.0 % [27.5, 40.5]`."""
    return "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * interval[key] for key in ("mean", "lo", "hi")))
