"""T1, T2, T3 (whitening), T7, T12 and T16 of algorithms.md; invariants I3, I5; case 43."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from online_trainer.credit import groups
from online_trainer.credit.gae import Gae, gae
from online_trainer.credit.monte_carlo import MonteCarlo, returns
from online_trainer.credit.scale import FLOOR, RunningScale, centred, scaled

REWARD = torch.tensor([0.1, -0.2, 1.0], dtype=torch.float64)
VALUE = torch.tensor([0.5, 0.4, 0.6], dtype=torch.float64)
T1 = [
    (1.0, 0.95, 0.0, [0.361, 0.38, 0.4]),
    (0.99, 0.9, 0.0, [0.3082064, 0.3504, 0.4]),
    (0.9, 0.8, 0.0, [0.12416, 0.228, 0.4]),
    (1.0, 0.0, 0.0, [0.0, 0.0, 0.4]),
    (0.99, 0.0, 0.0, [-0.004, -0.006, 0.4]),
    (1.0, 1.0, 0.0, [0.4, 0.4, 0.4]),
    (0.99, 0.9, 0.3, [0.543989057, 0.615027, 0.697]),
]


def gae_episode(
    reward_H: Tensor, value_H: Tensor, *, gamma: float, lam: float, bootstrap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """One episode: (advantage_H, return_H)."""
    estimate = gae(
        reward_H[None],
        value_H[None],
        mask_EH=torch.ones_like(reward_H, dtype=torch.bool)[None],
        bootstrap_E=reward_H.new_full((1,), bootstrap),
        gamma=gamma,
        lam=lam,
    )
    return estimate.advantage_EH[0], estimate.return_EH[0]


@pytest.mark.parametrize(("gamma", "lam", "bootstrap", "expected"), T1)
def test_t1_gae(gamma: float, lam: float, bootstrap: float, expected: list[float]) -> None:
    advantage, ret = gae_episode(REWARD, VALUE, gamma=gamma, lam=lam, bootstrap=bootstrap)
    assert advantage.tolist() == pytest.approx(expected, abs=1e-9)
    assert ret.tolist() == pytest.approx(
        (torch.tensor(expected, dtype=torch.float64) + VALUE).tolist(), abs=1e-9
    )


def test_t1_lambda_one_returns_are_the_monte_carlo_returns() -> None:
    _, ret = gae_episode(REWARD, VALUE, gamma=1.0, lam=1.0)
    assert ret.tolist() == pytest.approx([0.9, 0.8, 1.0], abs=1e-12)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [(1.0, 1.0, [1.0, 1.0, 1.0, 1.0]), (0.99, 0.9, [0.707347971, 0.793881, 0.891, 1.0])],
)
def test_t2_terminal_reward_only(gamma: float, lam: float, expected: list[float]) -> None:
    reward = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    advantage, _ = gae_episode(reward, torch.zeros_like(reward), gamma=gamma, lam=lam)
    assert advantage.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (0.0, [-0.04, -0.06, 0.4]),
        (0.5, [0.014, 0.12, 0.4]),
        (0.95, [0.20111, 0.282, 0.4]),
        (1.0, [0.23, 0.3, 0.4]),
    ],
)
def test_t7_shaping_by_a_potential_leaves_advantages_alone(lam: float, expected: list[float]) -> None:
    shaped = torch.tensor([-0.55, 1.2, 0.0], dtype=torch.float64)
    potential = torch.tensor([0.2, -0.5, 1.0], dtype=torch.float64)
    plain, _ = gae_episode(REWARD, VALUE, gamma=0.9, lam=lam)
    moved, _ = gae_episode(shaped, VALUE - potential, gamma=0.9, lam=lam)
    assert plain.tolist() == pytest.approx(expected, abs=1e-9)
    assert moved.tolist() == pytest.approx(expected, abs=1e-9)
    if lam == 0.95:
        wrong, _ = gae_episode(shaped, VALUE, gamma=0.9, lam=lam)
        assert wrong.tolist() == pytest.approx([0.017085, 0.827, -0.6], abs=1e-9)


def padded(rows: list[list[float]], fill: float) -> tuple[Tensor, Tensor]:
    longest = max(len(r) for r in rows) + 2
    value = torch.full((len(rows), longest), fill, dtype=torch.float64)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        value[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
        mask[i, : len(row)] = True
    return value, mask


@pytest.mark.parametrize("garbage", [0.0, 1e9, math.nan, -math.inf])
def test_a_batch_is_its_episodes_whatever_stands_in_the_padding(garbage: float) -> None:
    rewards = [[0.1, -0.2, 1.0], [1.0], [0.0, 0.5]]
    values = [[0.5, 0.4, 0.6], [0.2], [-0.1, 0.3]]
    reward, mask = padded(rewards, garbage)
    value, _ = padded(values, garbage)
    bootstrap = torch.tensor([0.3, 0.0, 0.7], dtype=torch.float64)
    got = Gae(gamma=0.99, lam=0.9)(reward, value, mask_EH=mask, bootstrap_E=bootstrap)
    for i in range(3):
        alone, ret = gae_episode(
            reward[i][mask[i]], value[i][mask[i]], gamma=0.99, lam=0.9, bootstrap=float(bootstrap[i])
        )
        assert got.advantage_EH[i][mask[i]].tolist() == pytest.approx(alone.tolist(), abs=1e-12)
        assert got.return_EH[i][mask[i]].tolist() == pytest.approx(ret.tolist(), abs=1e-12)
    assert torch.equal(got.advantage_EH[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))
    assert torch.equal(got.return_EH[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))


def test_monte_carlo_is_return_minus_baseline() -> None:
    reward, mask = padded([[0.1, -0.2, 1.0], [1.0]], 9.0)
    value, _ = padded([[0.5, 0.4, 0.6], [0.2]], 9.0)
    nothing = torch.zeros(2, dtype=torch.float64)
    ret = returns(reward, mask_EH=mask, bootstrap_E=nothing, gamma=0.9)
    assert ret[0, :3].tolist() == pytest.approx([0.1 - 0.18 + 0.81, -0.2 + 0.9, 1.0])
    got = MonteCarlo(gamma=0.9)(reward, value, mask_EH=mask, bootstrap_E=nothing)
    assert torch.allclose(got.advantage_EH[mask], (ret - value)[mask], atol=1e-12)
    assert torch.allclose(got.return_EH, ret, atol=1e-12)


numbers = st.floats(-2, 2, allow_nan=False, width=32)
episodes = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(episodes, st.floats(0.1, 1.0), st.floats(0.0, 1.0), st.floats(0.01, 50.0))
def test_i3_credit_is_homogeneous(
    turns: list[tuple[float, float]], gamma: float, lam: float, factor: float
) -> None:
    reward, value = torch.tensor(turns, dtype=torch.float64).T
    plain, _ = gae_episode(reward, value, gamma=gamma, lam=lam)
    more, _ = gae_episode(factor * reward, factor * value, gamma=gamma, lam=lam)
    assert torch.allclose(more, factor * plain, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(episodes, st.floats(0.1, 1.0))
def test_i5_discounted_surprises_telescope(turns: list[tuple[float, float]], gamma: float) -> None:
    reward, value = torch.tensor(turns, dtype=torch.float64).T
    delta, _ = gae_episode(reward, value, gamma=gamma, lam=0.0)
    discount = gamma ** torch.arange(len(turns), dtype=torch.float64)
    total = float((discount * reward).sum()) - float(value[0])
    assert float((discount * delta).sum()) == pytest.approx(total, abs=1e-9)


def test_credit_carries_no_gradient() -> None:
    value = VALUE.clone().requires_grad_()
    got = gae(
        REWARD[None],
        value[None],
        mask_EH=torch.ones(1, 3, dtype=torch.bool),
        bootstrap_E=torch.zeros(1),
        gamma=1.0,
        lam=1.0,
    )
    assert not got.advantage_EH.requires_grad and not got.return_EH.requires_grad


def test_t12_group_baselines() -> None:
    mixed = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    assert torch.allclose(groups.rloo(mixed), signs * 2 / 3)
    assert groups.grpo(mixed).tolist() == pytest.approx((signs * 0.866025404).tolist(), abs=1e-6)
    assert torch.allclose(groups.dr_grpo(mixed), signs * 0.5)
    assert torch.allclose(groups.rloo(mixed), 4 / 3 * groups.dr_grpo(mixed))
    rare = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert groups.grpo(rare).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-9)
    assert groups.grpo(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
    assert groups.grpo(torch.ones(4)).tolist() == [0.0] * 4


def test_scale_is_the_root_mean_square_over_turns_and_subtracts_nothing() -> None:
    scale = RunningScale().after(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    assert scale.value == pytest.approx(2.5)
    assert scaled(torch.tensor([2.5, -1.25, 50.0, -50.0]), scale, clip=3.0).tolist() == [1.0, -0.5, 3.0, -3.0]
    worse = scaled(torch.full((4,), -2.5), scale, clip=3.0)
    assert float(worse.mean()) == -1.0


def test_t3_whitening_is_by_the_population() -> None:
    """[1, 2, 3]: +-1.2247449; a turn without a credit takes no part and keeps none."""
    whole = centred(torch.tensor([[1.0, 2.0, 3.0]]))
    scale = RunningScale().after(whole[0])
    assert scaled(whole[0], scale, clip=3.0).tolist() == pytest.approx([-1.2247449, 0.0, 1.2247449], abs=1e-6)
    padded_out = centred(torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0]]))
    assert padded_out.tolist() == [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert centred(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]


def test_scale_weighs_turns_and_forgets_old_batches() -> None:
    scale = RunningScale().after(torch.full((30,), 2.0)).after(torch.full((10,), 1.0))
    assert scale.value == pytest.approx(math.sqrt((0.9 * 120 + 10) / (0.9 * 30 + 10)))


@pytest.mark.parametrize("rewards", [[1.0], [1.0] * 3, [1.0, 0.0], [1.0, 1.0, 1.0, 1.0, -1.0], [0.0, 0.0]])
def test_case_43_tiny_batches_stay_finite(rewards: list[float]) -> None:
    advantage = torch.tensor(rewards)
    scale = RunningScale().after(advantage)
    got = scaled(advantage, scale, clip=3.0)
    assert bool(torch.isfinite(got).all())
    assert bool((got.sign() == advantage.sign()).all())
    assert float(got.abs().max()) <= 3.0


def test_case_43_equal_rewards_at_their_baseline_give_nothing_and_noise_is_not_blown_up() -> None:
    level = RunningScale().after(torch.zeros(16))
    assert scaled(torch.zeros(16), level, clip=3.0).tolist() == [0.0] * 16
    assert float(scaled(torch.full((4,), 1e-4), level, clip=3.0).max()) == pytest.approx(1e-4 / FLOOR)


def test_case_40_a_broken_batch_leaves_the_scale_alone() -> None:
    scale = RunningScale().after(torch.ones(4))
    assert scale.after(torch.tensor([1.0, math.nan])) == scale
    assert scale.after(torch.tensor([math.inf])) == scale


def policy_gradient(reward: object, baseline: object, p_z: float) -> tuple[float, float]:
    """Mean and variance of A * d log pi / d logit over z ~ Bernoulli(p_z), a ~ Bernoulli(.7), by enumeration."""
    mean = square = 0.0
    for z, share_z in ((1, p_z), (0, 1 - p_z)):
        for a, share_a in ((1, 0.7), (0, 0.3)):
            r = torch.tensor([float(reward(z, a))], dtype=torch.float64)  # type: ignore[operator]
            v = torch.tensor([float(baseline(z, a))], dtype=torch.float64)  # type: ignore[operator]
            advantage, _ = gae_episode(r, v, gamma=1.0, lam=0.9)
            g = float(advantage[0]) * (0.3 if a else -0.7)
            mean, square = mean + share_z * share_a * g, square + share_z * share_a * g * g
    return mean, square - mean**2


def test_t16_what_a_baseline_may_see() -> None:
    def hit(z: int, a: int) -> float:
        return float(a == z)

    assert policy_gradient(hit, lambda z, a: 0.62, 0.8) == pytest.approx((0.126, 0.045696), abs=1e-9)
    assert policy_gradient(hit, lambda z, a: 0.7 if z else 0.3, 0.8) == pytest.approx(
        (0.126, 0.061824), abs=1e-9
    )
    assert policy_gradient(hit, hit, 0.8)[0] == pytest.approx(0.0, abs=1e-12)
    assert policy_gradient(hit, lambda z, a: 0.8 if a else 0.2, 0.8)[0] == pytest.approx(0.0, abs=1e-12)


def test_t16_additive_difficulty_is_worth_knowing() -> None:
    def ease(z: int, a: int) -> float:
        return 0.5 * a + z

    assert policy_gradient(ease, lambda z, a: 0.0, 0.5) == pytest.approx((0.105, 0.141225), abs=1e-9)
    assert policy_gradient(ease, lambda z, a: 0.85, 0.5) == pytest.approx((0.105, 0.0609), abs=1e-9)
    assert policy_gradient(ease, lambda z, a: 0.35 + z, 0.5) == pytest.approx((0.105, 0.0084), abs=1e-9)
