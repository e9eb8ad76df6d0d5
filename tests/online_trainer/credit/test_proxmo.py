"""T8 of algorithms.md: how rarity weighs, and whom a turn is compared with."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_trainer.credit.proxmo import neighbour_weights, similarity, success_weight

SIMS = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
RETURNS = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
ALL = torch.ones(1, 3, dtype=torch.bool)
OTHERS = torch.tensor([[False, True, True]])
HALF = 1 / (1 + math.exp(-1)) - 0.5


@pytest.mark.parametrize(
    ("beta", "rate", "success", "failure"),
    [
        (0.1, 0.0, 1.023105858, 1.0),
        (0.1, 0.25, 1.007844818, 0.999902344),
        (0.1, 0.5, 1.001561992, 0.998438008),
        (0.1, 0.75, 1.000097656, 0.992155182),
        (0.1, 1.0, 1.0, 0.976894142),
        (0.216395341, 0.0, 1.05, 1.0),
        (0.216395341, 0.25, 1.016975820, 0.999788677),
        (0.216395341, 0.5, 1.003380077, 0.996619923),
        (0.216395341, 0.75, 1.000211323, 0.983024180),
        (0.216395341, 1.0, 1.0, 0.95),
    ],
)
def test_t8_a_rare_result_weighs_more(beta: float, rate: float, success: float, failure: float) -> None:
    got = success_weight(
        torch.tensor([True, False]),
        torch.full((2,), rate, dtype=torch.float64),
        alpha=4.0,
        most=beta * HALF,
    )
    assert got.tolist() == pytest.approx([success, failure], abs=1e-8)


@pytest.mark.parametrize(
    ("tau", "weights", "baseline"),
    [
        (0.1, [0.993262357, 0.006692549, 0.000045094], 0.993284904),
        (1.0, None, 0.599642253),
        (1e9, [1 / 3] * 3, 0.5),
        (1e-3, [1.0, 0.0, 0.0], 1.0),
    ],
)
def test_t8_baseline_with_itself(tau: float, weights: list[float] | None, baseline: float) -> None:
    got = neighbour_weights(SIMS, allowed_NR=ALL, tau=tau)
    assert float(got.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(got @ RETURNS) == pytest.approx(baseline, abs=1e-8)
    if weights is not None:
        assert got[0].tolist() == pytest.approx(weights, abs=1e-8)


def test_t8_leaving_itself_out_uncovers_the_credit_that_comparing_with_itself_hides() -> None:
    got = neighbour_weights(SIMS, allowed_NR=OTHERS, tau=0.1)
    assert got[0].tolist() == pytest.approx([0.0, 0.993307149, 0.006692851], abs=1e-9)
    assert 1.0 - float(got @ RETURNS) == pytest.approx(0.996653575, abs=1e-9)
    assert 1.0 - float(neighbour_weights(SIMS, allowed_NR=ALL, tau=0.1) @ RETURNS) == pytest.approx(
        0.006715095, abs=1e-8
    )


def test_whoever_may_look_at_nobody_gets_no_baseline() -> None:
    nobody = torch.zeros(1, 3, dtype=torch.bool)
    assert neighbour_weights(SIMS, allowed_NR=nobody, tau=0.1).tolist() == [[0.0, 0.0, 0.0]]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.floats(0.01, 5.0), st.integers(0, 1000))
def test_t8_rows_sum_to_one_and_order_does_not_matter(count: int, tau: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sims = torch.rand(3, count, generator=generator, dtype=torch.float64) * 2 - 1
    allowed = torch.rand(3, count, generator=generator) < 0.7
    allowed[:, 0] = True
    order = torch.randperm(count, generator=generator)
    got = neighbour_weights(sims, allowed_NR=allowed, tau=tau)
    assert torch.allclose(got.sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(
        neighbour_weights(sims[:, order], allowed_NR=allowed[:, order], tau=tau), got[:, order]
    )
    same = torch.full((count,), 0.7, dtype=torch.float64)
    assert torch.allclose(same[:3].new_full((3,), 0.7) - got @ same, torch.zeros(3, dtype=torch.float64))


def test_what_all_states_share_makes_none_of_them_alike() -> None:
    """Two kinds of states beside a common part a hundred times as large, and a feature that never varies."""
    kind = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, -0.1]])
    state = torch.cat([kind + 100.0, torch.full((4, 1), 7.0)], dim=1)
    got = similarity(state, state)
    assert float(got[0, 1]) > 0.5 > -0.5 > float(got[0, 2])
    assert got.diagonal().tolist() == pytest.approx([1.0] * 4, abs=1e-5)
