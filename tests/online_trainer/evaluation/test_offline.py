"""T17 of algorithms.md: an estimate that is right when either half of it is, and KTO's value."""

import pytest
import torch

from online_trainer.evaluation.offline import doubly_robust, kto_value


@pytest.mark.parametrize(("model", "rated", "silent"), [(0.3, 1.7, 0.3), (0.9, 1.1, 0.9)])
def test_t17_doubly_robust(model: float, rated: float, silent: float) -> None:
    """Rated half of the time with u = 1: the mean is 1 whatever the model says."""
    got = doubly_robust(
        torch.full((2,), model, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor([1.0, float("nan")], dtype=torch.float64),
        chance_N=torch.full((2,), 0.5, dtype=torch.float64),
        floor=0.1,
    )
    assert got.tolist() == pytest.approx([rated, silent], abs=1e-12)
    assert float(got.mean()) == pytest.approx(1.0)


def test_t17_a_right_model_needs_no_right_chance_and_the_weight_is_bounded() -> None:
    one, yes = torch.ones(1, dtype=torch.float64), torch.tensor([True])
    assert float(doubly_robust(one, yes, one, chance_N=one * 0.9, floor=0.1)) == 1.0
    assert float(doubly_robust(0 * one, yes, one, chance_N=one * 1e-6, floor=0.1)) == pytest.approx(10.0)


def test_t17_kto() -> None:
    got = kto_value(
        torch.tensor([2.0, 2.0], dtype=torch.float64), torch.tensor([True, False]), beta=0.1, anchor=0.5
    )
    assert got.tolist() == pytest.approx([0.537430, 0.462570], abs=1e-6)
