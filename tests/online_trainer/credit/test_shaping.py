"""T7 of algorithms.md on the progress channel itself: it changes no advantage, and what is no shaping trips the wire."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feedback.reward import progress
from online_trainer.credit.gae import Gae
from online_trainer.credit.levels import TwoLevels
from online_trainer.credit.monte_carlo import MonteCarlo
from online_trainer.credit.protocol import Credit
from online_trainer.credit.shaping import is_farmed, potentials

REWARD = torch.tensor([[0.1, -0.2, 1.0]], dtype=torch.float64)
VALUE = torch.tensor([[0.5, 0.4, 0.6]], dtype=torch.float64)
MASK = torch.ones(1, 3, dtype=torch.bool)
RULES: list[Credit] = [
    *(Gae(0.9, lam) for lam in (0.0, 0.5, 0.95, 1.0)),
    MonteCarlo(0.9),
    TwoLevels(0.9, 0.7, torch.tensor([1.03]), MASK, MASK),
]


def credit(rule: Credit, reward: Tensor, value: Tensor) -> list[float]:
    estimate = rule(reward, value, mask_EH=MASK, bootstrap_E=torch.zeros(1, dtype=torch.float64))
    return list(estimate.advantage_EH[0].tolist())


@pytest.mark.parametrize("rule", RULES)
def test_t7_shaping_changes_no_advantage_under_any_rule(rule: Credit) -> None:
    potential = [0.2, -0.5, 1.0]
    gains = torch.tensor([progress(potential, gamma=0.9)], dtype=torch.float64)
    assert (REWARD + gains)[0].tolist() == pytest.approx([-0.55, 1.2, 0.0])
    shaped = credit(rule, REWARD + gains, VALUE - torch.tensor([potential], dtype=torch.float64))
    assert shaped == pytest.approx(credit(rule, REWARD, VALUE), abs=1e-12)
    assert credit(rule, REWARD + gains, VALUE) != pytest.approx(credit(rule, REWARD, VALUE), abs=1e-3)


shares = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(shares, st.floats(0.5, 1.0))
def test_phi_comes_back_from_the_channel_and_no_sub_goal_trips_the_wire(
    phi: list[float], gamma: float
) -> None:
    gains = progress(phi, gamma=gamma)
    assert potentials(gains, gamma=gamma) == pytest.approx(phi, abs=1e-9)
    assert not is_farmed(gains, gamma=gamma)


@pytest.mark.parametrize(
    "gains",
    [
        [0.5, 0.5, 0.0],  # a bonus per call
        [0.99 * 0.5, 0.99 - 0.5, 0.0],  # Phi(end) = 0 forgotten
        [0.0, 0.0, 1.0],  # paid at the end
        [-1.5, 0.0],  # a Phi above 1
        [float("nan")],
    ],
)
def test_what_no_potential_explains_is_farmed(gains: list[float]) -> None:
    assert is_farmed(gains, gamma=0.99)
    assert not is_farmed([0.0] * len(gains), gamma=0.99)


def test_another_gamma_trips_the_wire_too() -> None:
    assert is_farmed(progress([0.0, 1.0, 1.0], gamma=1.0), gamma=0.9)
