"""T13 of algorithms.md and invariant I4 for the reward with a reference."""

import math

import pytest
import torch

from online_trainer import pessimism

MEMBERS = torch.tensor([[1.0], [0.6], [0.2], [1.4]], dtype=torch.float64)


def test_t13_ensembles() -> None:
    assert float(MEMBERS.mean()) == pytest.approx(0.8)
    assert float(pessimism.lower_bound(MEMBERS, kappa=1.0)) == pytest.approx(0.283602, abs=1e-6)
    assert float(pessimism.variance_weighted(MEMBERS, weight=0.5)) == pytest.approx(0.7, abs=1e-12)
    assert float(pessimism.worst(MEMBERS)) == 0.2


@pytest.mark.parametrize(("b", "expected"), [(1.0, 0.702178), (0.1, 0.336781), (100.0, 0.799)])
def test_t13_distributionally_robust(b: float, expected: float) -> None:
    assert float(pessimism.distributionally_robust(MEMBERS, b=b)) == pytest.approx(expected, abs=1e-6)


def test_t13_preference_reward() -> None:
    one = torch.tensor([1.0], dtype=torch.float64)
    assert float(pessimism.preference_reward(one, 0.0)) == pytest.approx(0.462117157, abs=1e-9)
    assert float(pessimism.preference_reward(one + 7, 7.0)) == pytest.approx(0.462117157, abs=1e-9)
    assert float(pessimism.preference_reward(one, 0.0, temperature=2.0)) == pytest.approx(
        math.tanh(0.25), abs=1e-9
    )
