"""The canary's published figures, each from simulated canaries: false verdicts under the null, speed, power, damage done.

Runs are enough for a binomial error of half a per cent at 2,000; a scenario is a line of `scenarios`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from deploy.bench.creep import Crept, People, creep
from deploy.bench.simulation import PROMOTED, ROLLED_BACK, Played, World, play
from feedback.agent_file import Canary as Settings
from feedback.schemas import AdapterRef, Holdout, TrafficSplit
from serving.engines.router import assign, bucket


def desk_world(success: tuple[float, float], *, invalid: tuple[float, float] = (0.03, 0.03)) -> World:
    """Desk's people: .775 of the episodes have an outcome, 16 % of those are wrong, six in ten are thumbs."""
    return World(success, reacts=0.775, wrong=0.16, thumb=0.6, invalid=invalid)


def at(share: float, *, margin: float = 0.0) -> Settings:
    """One share and a verdict at .05 on both sides."""
    steps = [{"setShare": share}, {"analysis": {}}]
    return Settings.model_validate(
        {"steps": steps, "margin": margin, "alphaPromote": 0.05, "alphaRollback": 0.05}
    )


@dataclass(frozen=True)
class Scenario:
    """A world, the settings it is tried with, and what is read off; a figure's key is the scenario's name and its own."""

    name: str
    world: World
    settings: Settings
    episodes: int
    figures: dict[str, Callable[[Played], float]]


_PROMOTION: dict[str, Callable[[Played], float]] = {".false_promotion": lambda played: played.rate(PROMOTED)}
_VERDICTS = _PROMOTION | {".false_rollback": lambda played: played.rate(ROLLED_BACK)}
_PROMOTED: dict[str, Callable[[Played], float]] = {".median_units": lambda played: played.units_to(PROMOTED)}
_FOUND: dict[str, Callable[[Played], float]] = {".median_units": lambda played: played.units_to(ROLLED_BACK)}


CANDIDATES = 100
CREEP_EPISODES = 1000
"""Of each candidate: without a verdict by then it makes room for the next."""

_CREEP: dict[str, Callable[[Crept], float]] = {
    "": lambda crept: crept.quantile(0.95),
    ".mean": lambda crept: float(crept.fell.mean()),
    ".worst": lambda crept: float(crept.fell.max()),
    ".promoted": lambda crept: float(crept.promoted.mean()),
    ".returned": lambda crept: float(crept.returned.mean()),
}
"""How far the live line falls below the anchor: what 95 of 100 lines stay within, and beside it mean and worst."""


def scenarios(desk: Settings) -> tuple[Scenario, ...]:
    """All of them; `desk` is the desk profile's canary section."""
    production = Settings()
    hit: dict[str, Callable[[Played], float]] = {"p95_units_hit": lambda played: played.hit_quantile(0.95)}
    plain = {key.replace(".", "_"): read for key, read in _VERDICTS.items()}
    return (
        Scenario("aa", World((0.7, 0.7)), at(0.5), 2000, plain),
        Scenario("aa_drift", World((0.6, 0.6), swing=0.25), at(0.5), 2000, _VERDICTS),
        Scenario("aa_rare", World((0.95, 0.95)), at(0.05), 2000, _VERDICTS),
        Scenario("aa_sticky", World((0.7, 0.7), quality=1.0), at(0.5), 1000, _VERDICTS),
        Scenario("aa_clustered", World((0.7, 0.7), quality=1.0, ratings=10), at(0.5), 1000, _VERDICTS),
        Scenario("detect.070_060", World((0.7, 0.6)), at(0.5), 2000, _FOUND),
        Scenario("detect.070_030", World((0.7, 0.3)), at(0.05), 1500, _FOUND),
        Scenario("promote.070_080", World((0.7, 0.8)), at(0.25), 2500, _PROMOTED),
        Scenario("promote.desk_plus20", desk_world((0.35, 0.55)), desk, 1500, _PROMOTED),
        Scenario(
            "equal_candidate_promoted_4000",
            World((0.7, 0.7)),
            production,
            4000,
            {"": lambda played: played.rate(PROMOTED)},
        ),
        Scenario(
            "boundary",
            World((0.7, 0.65)),
            production,
            4000,
            {".false_promotion_per_100": lambda played: 100 * played.rate(PROMOTED)},
        ),
        Scenario("sabotage.", desk_world((0.5, 0.0), invalid=(0.03, 0.8)), desk, 1500, hit),
        Scenario("sabotage.silent_", desk_world((0.5, 0.0)), desk, 1500, hit),
    )


def measure(desk: Settings, *, runs: int, seed: int = 11) -> Iterator[tuple[str, float]]:
    """Figures by their published keys, one after the other as they are known."""
    for scenario in scenarios(desk):
        played = play(scenario.world, scenario.settings, runs=runs, episodes=scenario.episodes, seed=seed)
        for figure, read in scenario.figures.items():
            yield f"canary.{scenario.name}{figure}", read(played)
    for name, settings, people in (("creep", Settings(), People()), ("creep_desk", desk, People(count=120))):
        lines = max(1, runs // 20)
        crept = creep(
            settings, lines=lines, candidates=CANDIDATES, episodes=CREEP_EPISODES, people=people, seed=seed
        )
        for figure, read_off in _CREEP.items():
            yield f"canary.{name}{figure}", read_off(crept)
    yield "canary.share_error", share_error(users=1000)
    yield "canary.salt_correlation", salt_correlation(units=1_000_000)


def share_error(*, users: int, share: float = 0.1) -> float:
    """How far the share of users on the candidate is from `share`, in binomial standard deviations. Episodes of one user are
    units of their own, so the holdout's hash, which is by user, is what is looked at.
    """
    ref = AdapterRef(version="travel-desk-000000")
    split = TrafficSplit(
        agent="travel-desk",
        generation=0,
        champion=ref,
        holdout=Holdout(ref=ref, share=share, salt="bench:holdout"),
        at=0,
    )
    held = sum(
        all(
            assign(split, f"ep_{user}_{request}", user=f"user-{user}").arm == "holdout"
            for request in range(20)
        )
        for user in range(users)
    )
    return float(abs(held - users * share) / np.sqrt(users * share * (1 - share)))


def salt_correlation(*, units: int) -> float:
    """Between the buckets that two salts give the same units."""
    first, second = (
        np.array([bucket(salt, f"ep_{unit}") for unit in range(units)]) for salt in ("cn_one", "cn_two")
    )
    return float(abs(np.corrcoef(first, second)[0, 1]))
