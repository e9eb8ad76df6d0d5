"""Intervals: known means, the binomial width, pairing."""

import numpy as np
import pytest

from deploy.intervals import mean_interval, paired_interval


def test_width_of_a_proportion_is_the_binomials():
    values = [1.0] * 70 + [0.0] * 130
    found = mean_interval(values, seed=1)
    half = 1.96 * np.sqrt(0.35 * 0.65 / 200)
    assert found.mean == pytest.approx(0.35)
    assert found.lo == pytest.approx(0.35 - half, abs=0.01)
    assert found.hi == pytest.approx(0.35 + half, abs=0.01)


def test_pairing_removes_what_the_tasks_share():
    generator = np.random.default_rng(0)
    difficulty = generator.random(200)
    before = list(difficulty)
    after = list(difficulty + 0.05)
    paired = paired_interval(after, before, seed=3)
    assert paired.mean == pytest.approx(0.05)
    assert paired.hi - paired.lo < 1e-9
    assert paired_interval(before, after, seed=3).mean == pytest.approx(-0.05)


def test_same_seed_same_interval_and_empty_is_refused():
    assert mean_interval([0, 1, 1], seed=5) == mean_interval([0, 1, 1], seed=5)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([], seed=1)
    with pytest.raises(ValueError, match="equal lengths"):
        paired_interval([1.0], [1.0, 2.0], seed=1)
