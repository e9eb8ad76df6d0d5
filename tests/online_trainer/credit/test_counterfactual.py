"""T18 of algorithms.md: counterfactual baseline, Shapley values, credits that add up."""

import pytest
import torch

from online_trainer.credit.counterfactual import coma, projected, shapley, sum_loss


def test_t18_coma() -> None:
    value = torch.tensor([[1.0, 0.2, -0.4]], dtype=torch.float64)
    policy = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    got = coma(value, policy)
    assert got[0].tolist() == pytest.approx([0.52, -0.28, -0.88], abs=1e-12)
    assert float((policy * got).sum()) == pytest.approx(0.0, abs=1e-12)


def test_t18_shapley() -> None:
    worth = {frozenset({0}): 0.2, frozenset({1}): 0.1, frozenset({0, 1}): 1.0}
    assert shapley(worth, turns=2) == pytest.approx([0.55, 0.45])
    alone = {frozenset(s): float(0 in s) for s in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])}
    assert shapley(alone, turns=3) == pytest.approx([1.0, 0.0, 0.0])


def test_t18_progress_that_adds_up() -> None:
    credit = torch.tensor([0.2, 0.5, 0.1], dtype=torch.float64)
    assert float(sum_loss(credit, 1.0)) == pytest.approx(0.04)
    assert projected(credit, 1.0).tolist() == pytest.approx([0.266667, 0.566667, 0.166667], abs=1e-6)
