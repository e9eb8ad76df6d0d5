"""Case 39: engine and trainer are compared where both had the same weights, and nowhere else."""

from __future__ import annotations

import math

import pytest
import torch

from online_trainer.update.parity import MEAN, Parity


def test_the_differences_worked_by_hand() -> None:
    got = Parity.of(torch.tensor([-1.0, -2.0, -0.7]), torch.tensor([-1.1, -2.0, -0.5]))
    assert (got.tokens, got.mean, got.most) == (3, pytest.approx(0.1), pytest.approx(0.2))
    k3 = (math.exp(0.1) - 1 - 0.1 + math.exp(-0.2) - 1 + 0.2) / 3
    assert got.measures()["sampling/k3"] == pytest.approx(k3, rel=1e-5)
    assert got.measures()[MEAN] == got.mean


@pytest.mark.parametrize(("apart", "agrees"), [(0.0, True), (0.009, True), (0.019, True), (0.021, False)])
def test_rounding_is_no_fault_and_another_distribution_is(apart: float, agrees: bool) -> None:
    mu = torch.full((50,), -1.0, dtype=torch.float64)
    found = Parity.of(mu + apart, mu).fault()
    assert (found is None) is agrees


def test_nothing_is_said_where_nothing_was_compared() -> None:
    nothing = Parity.of(torch.zeros(0), torch.zeros(0))
    assert nothing.measures() == {} and nothing.fault() is None


def test_a_broken_number_is_a_fault() -> None:
    broken = Parity.of(torch.tensor([-1.0]), torch.tensor([math.nan]))
    assert broken.fault() is not None and broken.measures() == {}
