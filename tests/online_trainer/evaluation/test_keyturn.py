"""The enumerated table of algorithms.md 11: what exact, constant and zero critics make of KeyTurn."""

import pytest
import torch
from torch import Tensor

from online_trainer.credit.gae import Gae
from online_trainer.evaluation import credit
from online_trainer.evaluation.keyturn import Episodes, KeyTurn, every_episode, true_advantages, true_values

TASK = KeyTurn()
EPISODES = every_episode(TASK)
TRUTH = true_advantages(TASK, EPISODES.good_EH)
WEIGHT = EPISODES.probability_E
KEY = TASK.key_H


def gae_of(value_EH: Tensor, lam: float, episodes: Episodes = EPISODES) -> Tensor:
    nothing = torch.zeros(len(value_EH), dtype=torch.float64)
    rule = Gae(gamma=1.0, lam=lam)
    return rule(episodes.reward_EH, value_EH, mask_EH=episodes.mask_EH, bootstrap_E=nothing).advantage_EH


def exact(lam: float) -> Tensor:
    return gae_of(true_values(TASK, EPISODES.good_EH), lam)


def sign_of(advantage: Tensor) -> float:
    return credit.sign_agreement(advantage, TRUTH, key_H=KEY, weight_E=WEIGHT)


def error_of(advantage: Tensor) -> float:
    return credit.normalised_error(advantage, TRUTH, weight_E=WEIGHT)


def mean_given(values: Tensor, condition: Tensor) -> float:
    return float((WEIGHT * values * condition).sum() / (WEIGHT * condition).sum())


def test_the_true_values_and_advantages() -> None:
    value, good = true_values(TASK, EPISODES.good_EH), EPISODES.good_EH
    assert float(WEIGHT.sum()) == pytest.approx(1.0)
    assert bool((value[:, :2] - 0.4).abs().max() < 1e-12)
    assert value[good[:, 1], 2].unique().tolist() == pytest.approx([0.6])
    assert value[~good[:, 1], 2].unique().tolist() == pytest.approx([0.2])
    assert TRUTH[good[:, 1], 1].unique().tolist() == pytest.approx([0.2])
    assert TRUTH[good[:, 1] & good[:, 4], 4].unique().tolist() == pytest.approx([0.3])
    assert TRUTH[~good[:, 1] & ~good[:, 4], 4].unique().tolist() == pytest.approx([-0.1])
    assert float(TRUTH[:, ~KEY].abs().max()) == 0.0
    assert float(WEIGHT @ TRUTH.square().sum(dim=1)) == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("lam", "variance", "sign", "error", "mass"),
    [
        (0.0, 0.0, 1.00, 1.667, 0.622),
        (0.5, 0.010342, 0.85, 2.517, 0.445),
        (0.8, 0.050095, 0.70, 5.418, 0.384),
        (0.9, 0.106225, 0.70, 8.003, 0.375),
        (0.95, 0.159082, 0.70, 9.989, 0.370),
        (1.0, 0.24, 0.70, 12.667, 0.366),
    ],
)
def test_an_exact_critic(lam: float, variance: float, sign: float, error: float, mass: float) -> None:
    advantage = exact(lam)
    assert credit.turn_variance(advantage, 0, weight_E=WEIGHT) == pytest.approx(variance, abs=1e-6)
    assert credit.turn_variance(advantage, 0, weight_E=WEIGHT) == pytest.approx(
        0.04 * lam**2 + 0.05 * lam**8 + 0.15 * lam**10, abs=1e-12
    )
    assert sign_of(advantage) == pytest.approx(sign, abs=1e-9)
    assert error_of(advantage) == pytest.approx(error, abs=5e-4)
    assert credit.key_mass(advantage, key_H=KEY, weight_E=WEIGHT) == pytest.approx(mass, abs=5e-4)


def test_a_constant_critic_makes_low_lambda_fatal() -> None:
    constant = torch.full_like(EPISODES.reward_EH, 0.4)
    good_first = EPISODES.good_EH[:, 1]
    blind = gae_of(constant, 0.0)
    assert sign_of(blind) == 0.0
    assert error_of(blind) == pytest.approx(3.667, abs=5e-4)
    assert mean_given(blind[:, 1], good_first) == pytest.approx(0.0, abs=1e-12)
    nearer = gae_of(constant, 0.9)
    assert mean_given(nearer[:, 1], good_first) == pytest.approx(0.13122, abs=1e-9)
    assert error_of(nearer) == pytest.approx(9.488, abs=5e-4)
    full = gae_of(constant, 1.0)
    assert sign_of(full) == pytest.approx(0.70)
    assert error_of(full) == pytest.approx(15.0, abs=5e-4)


def test_a_zero_critic_is_worse_than_none() -> None:
    raw = gae_of(torch.zeros_like(EPISODES.reward_EH), 1.0)
    assert sign_of(raw) == pytest.approx(0.30)
    assert error_of(raw) == pytest.approx(25.667, abs=5e-4)


def test_a_broadcast_return_points_at_no_turn_and_a_perfect_one_at_the_keys() -> None:
    broadcast = gae_of(torch.zeros_like(EPISODES.reward_EH), 1.0)
    assert credit.key_auroc(broadcast, key_H=KEY, weight_E=WEIGHT) == pytest.approx(0.5, abs=1e-12)
    assert credit.key_auroc(TRUTH, key_H=KEY, weight_E=WEIGHT) == pytest.approx(1.0, abs=1e-12)
    assert credit.precision_at_keys(TRUTH, key_H=KEY, weight_E=WEIGHT) == pytest.approx(1.0)
    assert credit.key_mass(TRUTH, key_H=KEY, weight_E=WEIGHT) == pytest.approx(1.0)
    assert (
        0.5
        < credit.key_auroc(exact(0.9), key_H=KEY, weight_E=WEIGHT)
        < credit.key_auroc(exact(0.0), key_H=KEY, weight_E=WEIGHT)
    )


def test_precision_worked_by_hand() -> None:
    advantage = torch.tensor([[0.1, -0.9, 0.0, 0.3, 0.2, 0.0]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    assert credit.precision_at_keys(advantage, key_H=KEY, weight_E=one) == 0.5
    assert credit.key_auroc(advantage, key_H=KEY, weight_E=one) == pytest.approx((4 + 3) / 8)
    assert credit.key_mass(torch.zeros(1, 6, dtype=torch.float64), key_H=KEY, weight_E=one) == 0.0
    sampled = every_episode(KeyTurn(turns=4, keys=(0, 3)))
    assert len(sampled.good_EH) == 32
    assert float(sampled.probability_E @ sampled.reward_EH[:, -1]) == pytest.approx(0.4)
