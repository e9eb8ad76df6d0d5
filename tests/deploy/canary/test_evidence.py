"""The published vectors of F1, F2 and F9 to their printed digits, the supermartingale identity, and a seeded simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.evidence import (
    RatioCheck,
    RatioChecks,
    TwoArm,
    bet,
    beta_binomial_log_e,
    confidence_sequence,
    informed,
    p_value,
)


def _run(process: TwoArm, units: list[tuple[float, int]], propensity: float) -> list[float]:
    values = []
    for y, arm in units:
        process = process.update(y, float(arm), propensity=propensity)
        values.append(math.exp(float(process.log_e)))
    return values


def test_worse_hits_the_published_sequence() -> None:
    units = [(1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (1, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1)]
    expected = [1, 1.333333, 2, 3.272727, 5.454545, 1.745455]
    expected += [2.443636, 4.213166, 6.319749, 11.294871, 17.749083, 32.411369]
    assert _run(TwoArm("worse", 0.0), units, 0.5) == pytest.approx(expected, abs=5e-7)
    process = TwoArm("worse", 0.0)
    for y, arm in units:
        process = process.update(y, float(arm), propensity=0.5)
    assert p_value(process) == pytest.approx(0.03085337, abs=5e-9)


def test_worse_alternating_first_passes_twenty_at_the_eighth() -> None:
    values = _run(TwoArm("worse", 0.0), [(1, 0), (0, 1)] * 4, 0.5)
    assert values[-1] == pytest.approx(29.7963, abs=5e-5)
    assert all(value < 20 for value in values[:-1])


def test_better_with_margin_and_stars() -> None:
    units = [(0.75, 0), (1, 1), (0.5, 0), (1, 1), (0.5, 0), (0.75, 1)]
    expected = [1, 1, 1.025926, 1.261138, 1.317683, 1.496956]
    assert _run(TwoArm("better", 0.05), units, 0.25) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("mu1", "mu0", "expected"), [(0.7, 0.7, 1.000000), (0.8, 0.7, 0.993069), (0.5, 0.7, 1.013862)]
)
def test_the_mean_factor_is_one_on_the_boundary(mu1: float, mu0: float, expected: float) -> None:
    assert _mean_factor(0.1, 0.60, 0.75, mu0, mu1) == pytest.approx(expected, abs=5e-7)


def _mean_factor(propensity: float, mean1: float, mean0: float, mu0: float, mu1: float) -> float:
    total = 0.0
    for arm, p_arm, mu in ((0.0, 1 - propensity, mu0), (1.0, propensity, mu1)):
        for y, p_y in ((1.0, mu), (0.0, 1 - mu)):
            total += p_arm * p_y * float(bet(y, arm, propensity, mean0, mean1))
    return total


unit_floats = st.floats(0.02, 0.98)


@given(unit_floats, unit_floats, unit_floats, unit_floats, unit_floats)
def test_no_null_makes_a_bet_profitable(
    propensity: float, mean0: float, mean1: float, mu0: float, gap: float
) -> None:
    """Betting on "worse" (mean1 < mean0) gains nothing for any mu1 >= mu0, and "better" nothing for any mu1 <= mu0."""
    low, high = sorted((mean0, mean1))
    above, below = mu0 + (1 - mu0) * gap, mu0 * gap
    assert _mean_factor(propensity, low, high, mu0, above) <= 1 + 1e-9
    assert _mean_factor(propensity, high, low, mu0, below) <= 1 + 1e-9


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=30))
def test_flipping_the_arms_swaps_the_sides(units: list[tuple[int, int]]) -> None:
    worse = _run(TwoArm("worse", 0.0), [(float(y), arm) for y, arm in units], 0.5)
    better = _run(TwoArm("better", 0.0), [(float(y), 1 - arm) for y, arm in units], 0.5)
    assert worse == pytest.approx(better)


def test_an_informed_start_is_the_prior_it_names() -> None:
    process = informed("better", 0.05, champion=0.4, candidate=0.55, strength=20)
    assert process.sum0 / process.weight0 == pytest.approx(0.4 / 1.05)
    assert process.sum1 / process.weight1 == pytest.approx(0.6 / 1.05)
    assert (process.n0, process.n1) == (0, 0)


def test_false_alarms_stay_below_alpha_while_peeking() -> None:
    """.70 = .70, looked at after each of 1,000 units, 1,000 runs: at most .05 on either side, plain or informed."""
    generator = np.random.default_rng(5)
    runs = 1_000
    zero = np.zeros(runs)
    processes = [
        TwoArm("worse", 0.0, log_e=zero, peak=zero),
        TwoArm("better", 0.0, log_e=zero, peak=zero),
        informed("better", 0.0, champion=0.4, candidate=0.9, strength=20),
    ]
    for _ in range(1_000):
        arm = (generator.random(runs) < 0.25).astype(float)
        y = (generator.random(runs) < 0.7).astype(float)
        processes = [process.update(y, arm, propensity=0.25) for process in processes]
    for process in processes:
        assert np.mean(process.peak >= math.log(20)) <= 0.05


def test_a_true_drop_is_found() -> None:
    """.70 -> .30 at share .05 within 600 units in most runs: the process has power, not only caution."""
    generator = np.random.default_rng(6)
    process = TwoArm("worse", 0.0, log_e=np.zeros(500), peak=np.zeros(500))
    for _ in range(600):
        arm = (generator.random(500) < 0.05).astype(float)
        y = (generator.random(500) < np.where(arm == 1, 0.3, 0.7)).astype(float)
        process = process.update(y, arm, propensity=0.05)
    assert np.mean(process.peak >= math.log(20)) > 0.85


@pytest.mark.parametrize(
    ("counts", "log_bf"), [((930, 70), math.log(8.119797)), ((9300, 700), math.log(1.344e15))]
)
def test_ratio_check_hits_the_published_factors(counts: tuple[int, int], log_bf: float) -> None:
    check = RatioCheck(0.05)
    for arm in [0] * counts[0] + [1] * counts[1]:
        check = check.update(float(arm))
    assert float(check.log_bf) == pytest.approx(log_bf, abs=2e-4)


def test_ratio_checks_multiply_over_shares_and_remember_the_peak() -> None:
    checks = RatioChecks()
    for _ in range(60):
        checks = checks.update(1, propensity=0.2)
    high = checks.peak
    for _ in range(400):
        checks = checks.update(0, propensity=0.2).update(1, propensity=0.5).update(0, propensity=0.5)
    assert checks.p == pytest.approx(math.exp(-high))
    assert checks.p < 0.001
    assert [stage.expected for stage in checks.stages] == [0.2, 0.5]


def test_beta_binomial_vectors() -> None:
    assert math.exp(beta_binomial_log_e(2, 20, p=0.5)) == pytest.approx(262.801002506, rel=1e-10)
    assert math.exp(beta_binomial_log_e(70, 100, p=0.5)) == pytest.approx(427.306647, rel=1e-8)
    growing = [math.exp(beta_binomial_log_e(n, n, p=0.5)) for n in range(1, 6)]
    assert growing == pytest.approx([1, 1.333333, 2, 3.2, 5.333333], abs=5e-7)


@pytest.mark.parametrize(
    ("successes", "n", "interval"),
    [(2, 20, (0.00365869, 0.41026106)), (70, 100, (0.54275401, 0.83055352)), (0, 0, (0.0, 1.0))],
)
def test_confidence_sequence_vectors(successes: int, n: int, interval: tuple[float, float]) -> None:
    """The upper end of 70/100 is where 1 / (101 C(100, 70) p^70 (1-p)^30) = 20; conventions print it with a digit astray."""
    assert confidence_sequence(successes, n, alpha=0.05) == pytest.approx(interval, abs=5e-9)


def test_a_running_intersection_only_shrinks() -> None:
    low, high, successes = 0.0, 1.0, 0
    for n, y in enumerate([1, 0, 1, 1, 0, 1, 1, 1, 0, 1], start=1):
        successes += y
        now = confidence_sequence(successes, n, alpha=0.05)
        low, high = max(low, now[0]), min(high, now[1])
    assert (low, high) == pytest.approx((0.267969, 0.957404), abs=5e-7)
