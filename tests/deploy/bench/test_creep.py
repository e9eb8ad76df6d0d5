"""Small losses do not add up: the budget bounds what is tolerated, and the holdout takes a fallen line back."""

import numpy as np

from deploy.bench.creep import Lines, People, creep
from deploy.canary.evidence import TwoArm
from feedback.agent_file import Canary as Settings

MARGIN = 0.2
RASH = Settings.model_validate(
    {
        "steps": [{"setShare": 0.5}, {"analysis": {}}],
        "margin": MARGIN,
        "alphaPromote": 0.9,
        "alphaRollback": 0.001,
    }
)
"""Promotes on next to nothing, so that a few candidates are enough to fall."""


def test_a_line_falls_by_whole_margins_and_only_by_what_won() -> None:
    crept = creep(RASH, lines=12, candidates=3, episodes=60, seed=3)
    assert np.allclose(crept.fell / MARGIN, np.round(crept.fell / MARGIN))
    assert (crept.fell <= MARGIN * crept.promoted + 1e-9).all()
    assert crept.promoted.sum() > 0


def test_the_budget_of_observed_losses_is_spent_once() -> None:
    lines = Lines(RASH, People(), anchor=0.7, lines=12, seed=3)
    for _ in range(4):
        lines.try_candidate(episodes=60)
    assert (lines.spent <= MARGIN + 1e-9).all()
    lines.spent = np.full(12, MARGIN)
    before = lines.champion.copy()
    lines.try_candidate(episodes=60)
    lost = before - lines.champion
    assert (lines.spent <= MARGIN + 1e-9).all(), (
        "a candidate seen to be worse was promoted on an empty budget"
    )
    assert (lost <= MARGIN + 1e-9).all()


def test_the_holdout_takes_a_fallen_line_back_and_evidence_begins_anew() -> None:
    careful = RASH.model_copy(update={"alphaPromote": 1e-9})
    lines = Lines(careful, People(count=100_000, holdout=0.4), anchor=0.9, lines=8, seed=5)
    lines.champion = np.full(8, 0.2)
    lines._reigns = np.ones(8)
    lines.try_candidate(episodes=200)
    assert (lines.crept.returned == 1).all()
    assert (lines.champion == 0.9).all()
    state = lines._state.worse
    assert isinstance(state, TwoArm) and (np.asarray(state.n0) == 0).all()


def test_a_line_as_good_as_its_anchor_is_left_alone() -> None:
    careful = RASH.model_copy(update={"alphaPromote": 1e-9})
    lines = Lines(careful, People(count=100_000, holdout=0.4), anchor=0.7, lines=8, seed=5)
    lines._reigns = np.ones(8)
    lines.try_candidate(episodes=200)
    assert lines.crept.returned.sum() == 0


def test_few_people_are_heard_once_each() -> None:
    careful = RASH.model_copy(update={"alphaPromote": 1e-9})
    lines = Lines(careful, People(count=20, holdout=0.5), anchor=0.7, lines=4, seed=5)
    lines._reigns = np.ones(4)
    lines.try_candidate(episodes=200)
    assert (np.asarray(lines._state.worse.n0) <= 10).all()
    assert (np.asarray(lines._state.worse.n1) <= 10).all()
