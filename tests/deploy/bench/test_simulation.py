"""The lockstep simulator decides as the pure canary does, and the desk defaults meet their bars on a small sample."""

from pathlib import Path

import numpy as np
import pytest

from deploy.bench.simulation import PAUSED, PROMOTED, ROLLED_BACK, Lockstep, World, draw, knowing, play
from deploy.canary.trial import Canary, Phase, create
from deploy.canary.verdict import begin, judge, saw_episode, took_unit
from feedback.agent_file import Canary as Settings
from feedback.agent_file import load_agent_file

DESK = load_agent_file(Path(__file__).parents[3] / "deploy/profiles/desk/agent.yaml").canary
PEOPLE = {"reacts": 0.775, "wrong": 0.16, "thumb": 0.6}
PHASES = {0: Phase.PROGRESSING, PROMOTED: Phase.PROMOTING, ROLLED_BACK: Phase.ABORTED, PAUSED: Phase.PAUSED}


@pytest.mark.parametrize(
    "world",
    [
        World((0.35, 0.7), **PEOPLE),
        World((0.6, 0.1), invalid=(0.03, 0.3), **PEOPLE),
        World((0.5, 0.5), **PEOPLE),
    ],
)
def test_lockstep_and_canary_agree_episode_by_episode(world: World) -> None:
    runs, generator = 12, np.random.default_rng(2)
    lockstep = Lockstep(DESK, knowing(world), runs=runs)
    begun = begin(create("cn_0", "v", settings=DESK, known=knowing(world)), now=0)[0]
    canaries: list[Canary] = [begun] * runs
    for at in range(220):
        episodes = draw(world, lockstep.share, at=at, generator=generator)
        shares = np.asarray(lockstep.share)
        lockstep.meet(episodes)
        lockstep.judge()
        for run, canary in enumerate(canaries):
            if canary.phase is not Phase.PROGRESSING:
                continue
            arm, share = int(episodes.arm[run]), float(shares[run])
            assert canary.share == share
            faults = {name: bool(each[run]) for name, each in episodes.faults.items()}
            outcome = float(episodes.outcome[run])
            canary = saw_episode(canary, arm, propensity=share, faults=faults)
            canary = took_unit(
                canary,
                arm,
                propensity=share,
                outcome=outcome if episodes.known[run] else None,
                thumb=outcome if episodes.thumbed[run] else None,
            )
            canaries[run], _ = judge(canary, now=0, newer_waits=False, allowance=DESK.margin)
        assert [each.phase for each in canaries] == [PHASES[int(code)] for code in lockstep.verdict]
    assert len({each.phase for each in canaries}) >= 1
    assert [each.units for each in canaries] == [int(n) for n in lockstep.played().units]


def test_sabotage_meets_few_people() -> None:
    loud = play(World((0.5, 0.0), invalid=(0.03, 0.8), **PEOPLE), DESK, runs=400, episodes=1000, seed=1)
    assert loud.hit_quantile(0.95) <= 60
    silent = play(World((0.5, 0.0), **PEOPLE), DESK, runs=400, episodes=1500, seed=2)
    assert silent.hit_quantile(0.95) <= 130


def test_a_real_gain_is_promoted_in_time() -> None:
    gain = play(World((0.35, 0.55), **PEOPLE), DESK, runs=400, episodes=1000, seed=3)
    assert gain.units_to(PROMOTED) <= 300
    assert gain.rate(ROLLED_BACK) <= 0.01


def test_equal_arms_with_no_margin_are_rarely_decided() -> None:
    settings = Settings.model_validate(
        {
            "steps": [{"setShare": 0.5}, {"analysis": {}}],
            "margin": 0.0,
            "alphaPromote": 0.05,
            "alphaRollback": 0.05,
        }
    )
    equal = play(World((0.7, 0.7)), settings, runs=300, episodes=600, seed=4)
    assert equal.rate(PROMOTED) <= 0.05
    assert equal.rate(ROLLED_BACK) <= 0.05


def test_twenty_ratings_of_one_person_are_one_unit() -> None:
    """Sticky users whose twenty ratings are averaged into one outcome: no more false alarms than single bits give."""
    settings = Settings.model_validate(
        {"steps": [{"setShare": 0.5}, {"analysis": {}}], "margin": 0.0, "alphaRollback": 0.05}
    )
    played = play(World((0.7, 0.7), quality=1.0, ratings=20), settings, runs=300, episodes=400, seed=5)
    assert played.rate(ROLLED_BACK) <= 0.05
