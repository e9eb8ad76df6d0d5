"""T4, T9, T11, T14 of algorithms.md and the invariants of the loss: I1, I2, I6, I11; cases 24 and 40."""

import math

import pytest
import torch
from torch import Tensor

from online_trainer.update import ppo
from online_trainer.update.kl import k1, k2, k2_loss, k3

CLIPS = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
NO_DUAL = {**CLIPS, "dual_clip": 1e9}
GARBAGE = (50.0, -1e9, math.nan, math.inf)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_and_gradient(ratio: float, advantage: float, clips: dict[str, float]) -> tuple[float, float]:
    new = f64(math.log(ratio)).requires_grad_()
    loss = ppo.ppo_dual_clip(new, f64(0.0), f64(advantage), **clips)
    loss.sum().backward()
    assert new.grad is not None
    return float(loss.detach()), float(new.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 1.0, -1.1, -1.1),
        (1.3, 1.0, -1.2, 0.0),
        (0.7, 1.0, -0.7, -0.7),
        (1.3, -1.0, 1.3, 1.3),
        (0.7, -1.0, 0.8, 0.0),
        (0.9, -1.0, 0.9, 0.9),
    ],
)
def test_t4_clip(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert loss_and_gradient(ratio, advantage, CLIPS) == pytest.approx((loss, gradient), abs=1e-6)


def test_t4_dual_clip_bounds_a_bad_token() -> None:
    assert loss_and_gradient(5.0, -1.0, NO_DUAL) == pytest.approx((5.0, 5.0), abs=1e-6)
    assert loss_and_gradient(5.0, -1.0, CLIPS) == pytest.approx((3.0, 0.0), abs=1e-6)


def test_t9_decoupled_weight_and_ratio() -> None:
    mu, old, new, mask = f64(-1.0), f64(-0.8), f64(-0.7).requires_grad_(), torch.tensor([True])
    assert float(ppo.truncated_weight(old, mu, cap=2.0)) == pytest.approx(1.221402758, abs=1e-9)
    assert float(ppo.log_ratio(new, old).exp().detach()) == pytest.approx(1.105170918, abs=1e-9)
    loss = ppo.policy_loss(new, old, mu, f64(1.0), mask, tis_cap=2.0, total=1.0, **CLIPS)
    assert float(loss.detach()) == pytest.approx(-1.349858808, abs=1e-9)


def test_t9_weight_is_cut_at_its_cap() -> None:
    assert float(ppo.truncated_weight(f64(-1.0), f64(-3.0), cap=1e9)) == pytest.approx(7.389056, abs=1e-6)
    assert float(ppo.truncated_weight(f64(-1.0), f64(-3.0), cap=2.0)) == 2.0


def test_t9_on_policy_gradient_is_minus_the_advantage() -> None:
    at, advantage = f64(-1.0, -2.0), f64(0.7, -1.3)
    new = at.clone().requires_grad_()
    mask = torch.tensor([True, True])
    ppo.policy_loss(new, at, at, advantage, mask, tis_cap=2.0, total=1.0, **CLIPS).backward()
    assert torch.equal(new.grad, -advantage)


def test_t9_interpolated_old() -> None:
    share = (6 - 3) / (7 - 3)
    assert float(ppo.interpolated_old(f64(-1.2), f64(-0.8), share=share)) == pytest.approx(-0.9, abs=1e-12)


@pytest.mark.parametrize(("weights", "share"), [((2, 0.5, 1, 1), 0.81), ((2, 2, 0.1, 0.1), 0.549875)])
def test_t9_effective_sample_size(weights: tuple[float, ...], share: float) -> None:
    assert ppo.effective_share(f64(*weights)) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (0.9, 0.5, 1.0, 0.045, 0.0),
        (0.9, 0.5, 0.6, 0.045, 0.3),
        (0.6, 0.5, 1.0, 0.08, -0.4),
        (0.1, 0.5, 1.0, 0.405, -0.9),
    ],
)
def test_t11_value_clip(value: float, old: float, target: float, loss: float, gradient: float) -> None:
    v = f64(value).requires_grad_()
    got = ppo.clipped_value_loss(v, f64(old), f64(target), clip=0.2)
    got.sum().backward()
    assert (float(got.detach()), float(v.grad)) == pytest.approx((loss, gradient), abs=1e-6)


def test_t14_turn_ratio_does_not_grow_with_length() -> None:
    ratios = f64(0.1, -0.1, 0.3, *[math.log(1.1)] * 10, *[math.log(1.1)] * 100).requires_grad_()
    turn = torch.tensor([0] * 3 + [1] * 10 + [2] * 100)
    got = ppo.turn_ratio(ratios, torch.zeros_like(ratios), turn, turns=3)
    assert got.tolist() == pytest.approx([1.105170918, 1.1, 1.1], abs=1e-9)
    got[0].backward()
    assert ratios.grad[:3].tolist() == pytest.approx([0.368390306] * 3, abs=1e-9)
    products = [float(ratios.detach()[turn == t].sum().exp()) for t in range(3)]
    assert products == pytest.approx([1.349858808, 2.593742, 13780.612], rel=1e-6)


def test_turn_ratios_in_the_loss_have_the_gradient_of_their_turn() -> None:
    """T14's turn of three and one of one token: each token's gradient is its turn's ratio; the clip takes whole turns."""
    new, turn = f64(0.1, -0.1, 0.3, 0.05).requires_grad_(), torch.tensor([0, 0, 0, 1])
    old, mask = f64(0.0, 0.0, 0.0, 0.0), torch.ones(4, dtype=torch.bool)
    level = ppo.turn_level(new, old, turn, turns=2)
    assert level.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.05])
    loss = ppo.policy_loss(level, old, old, torch.ones(4), mask, tis_cap=2.0, total=1.0, **CLIPS)
    loss.backward()
    assert new.grad.tolist() == pytest.approx([-1.105170918] * 3 + [-math.exp(0.05)], abs=1e-9)
    clipped = new.detach().clone().requires_grad_()
    tight = {**CLIPS, "clip_high": 0.06}
    level = ppo.turn_level(clipped, old, turn, turns=2)
    ppo.policy_loss(level, old, old, torch.ones(4), mask, tis_cap=2.0, total=1.0, **tight).backward()
    assert clipped.grad.tolist() == pytest.approx([0.0] * 3 + [-math.exp(0.05)], abs=1e-9)


def test_entropy_bonus_worked_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3], [0.9, 0.1, 0.0]]))
    logits = logits.double().requires_grad_()
    old, mu = f64(-1.0, -1.0, math.nan), f64(-1.0, -1.0 - math.log(4.0), 0.0)
    mask = torch.tensor([True, True, False])
    got = ppo.entropy_bonus(logits, old, mu, mask, tis_cap=2.0, total=2.0)
    half = 1.5 * math.log(2.0)
    assert float(got.detach()) == pytest.approx((half + 2.0 * math.log(3.0)) / 2, abs=1e-6)
    got.backward()
    assert bool(torch.isfinite(logits.grad[:2]).all())


def test_i1_no_move_is_exactly_no_ratio_and_no_kl() -> None:
    at = torch.randn(50, generator=torch.Generator().manual_seed(0)) * 3
    assert bool((ppo.log_ratio(at, at).exp() == 1.0).all())
    for estimator in (k1, k2, k3):
        assert bool((estimator(at, at) == 0.0).all())


def _update(
    new: Tensor, old: Tensor, mu: Tensor, ref: Tensor, adv: Tensor, mask: Tensor, total: float
) -> Tensor:
    """The whole loss of a micro-batch: policy and pull to the reference."""
    policy = ppo.policy_loss(new, old, mu, adv, mask, tis_cap=2.0, total=total, **CLIPS)
    return policy + 0.02 * k2_loss(new, ref, old, mu, mask, tis_cap=2.0, total=total)


def test_i2_no_advantage_at_the_reference_is_exactly_no_gradient() -> None:
    at = torch.tensor([[-1.0, -2.0, -0.1]])
    new, mask = at.clone().requires_grad_(), torch.ones(1, 3, dtype=torch.bool)
    _update(new, at, at - 0.3, at, torch.zeros(1, 3), mask, 3.0).backward()
    assert torch.equal(new.grad, torch.zeros(1, 3))


def _rows(seed: int = 1) -> tuple[list[Tensor], Tensor]:
    """Six rows of eight tokens of (new, old, mu, ref, advantage), and a mask."""
    generator = torch.Generator().manual_seed(seed)
    base = -torch.rand(6, 8, generator=generator, dtype=torch.float64) * 3
    near = [base + 0.3 * torch.randn(6, 8, generator=generator, dtype=torch.float64) for _ in range(4)]
    advantage = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    return [*near, advantage], torch.rand(6, 8, generator=generator) < 0.6


def _gradient(parts: list[Tensor], mask: Tensor, cuts: list[Tensor]) -> tuple[float, Tensor]:
    new = parts[0].clone().requires_grad_()
    total, loss = float(mask.sum()), 0.0
    for rows in cuts:
        piece = _update(new[rows], *(p[rows] for p in parts[1:]), mask[rows], total)
        piece.backward()
        loss += float(piece.detach())
    return loss, new.grad


def test_i6_micro_batches_and_order_leave_the_update_unchanged() -> None:
    parts, mask = _rows()
    whole, gradient = _gradient(parts, mask, [torch.arange(6)])
    pieces, split = _gradient(parts, mask, [torch.tensor([5, 2]), torch.tensor([0]), torch.tensor([4, 1, 3])])
    assert pieces == pytest.approx(whole, abs=1e-12)
    assert torch.allclose(split, gradient, atol=1e-12, rtol=0)
    assert float(gradient.abs().sum()) > 0.1


def test_t3_tool_tokens_between_turns_change_nothing() -> None:
    parts, mask = _rows()
    wider = [torch.cat([p[:, :3], torch.full((6, 4), 7.0, dtype=p.dtype), p[:, 3:]], dim=1) for p in parts]
    wide_mask = torch.cat([mask[:, :3], torch.zeros(6, 4, dtype=torch.bool), mask[:, 3:]], dim=1)
    loss, gradient = _gradient(parts, mask, [torch.arange(6)])
    wide_loss, wide_gradient = _gradient(wider, wide_mask, [torch.arange(6)])
    assert wide_loss == pytest.approx(loss, abs=1e-12)
    assert torch.equal(torch.cat([wide_gradient[:, :3], wide_gradient[:, 7:]], dim=1), gradient)
    assert torch.equal(wide_gradient[:, 3:7], torch.zeros(6, 4, dtype=torch.float64))


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("part", range(5))
def test_cases_24_and_40_garbage_at_masked_places_changes_nothing(garbage: float, part: int) -> None:
    parts, mask = _rows()
    loss, gradient = _gradient(parts, mask, [torch.arange(6)])
    dirty = [p.clone() for p in parts]
    dirty[part][~mask] = garbage
    dirty_loss, dirty_gradient = _gradient(dirty, mask, [torch.arange(6)])
    assert dirty_loss == loss
    assert torch.equal(dirty_gradient, gradient)


def test_token_sum_blanks_a_spoilt_loss_and_a_spoilt_weight() -> None:
    loss = f64(1.0, math.nan, math.inf, 2.0).requires_grad_()
    weight, mask = f64(0.5, 3.0, math.nan, 2.0), torch.tensor([True, False, False, True])
    got = ppo.token_sum(loss, weight, mask, total=2.0)
    got.backward()
    assert float(got.detach()) == pytest.approx((0.5 + 4.0) / 2)
    assert loss.grad.tolist() == [0.25, 0.0, 0.0, 1.0]


def test_case_40_a_counted_outlier_stays_finite_and_a_counted_nan_is_not_hidden() -> None:
    new, mask = f64(-1.0).requires_grad_(), torch.tensor([True])
    spoilt = ppo.policy_loss(new, f64(-100.0), f64(-100.0), f64(-1.0), mask, tis_cap=2.0, total=1.0, **CLIPS)
    spoilt.backward()
    assert float(spoilt.detach()) == 3.0 and bool(torch.isfinite(new.grad).all())
    hidden = ppo.policy_loss(new, f64(math.nan), f64(-1.0), f64(1.0), mask, tis_cap=2.0, total=1.0, **CLIPS)
    assert math.isnan(float(hidden.detach()))


def test_i11_gradient_is_the_one_with_the_weight_frozen() -> None:
    parts, mask = _rows(seed=3)
    _, old, mu, _, advantage = parts
    start, total = parts[0], float(mask.sum())
    frozen = ppo.truncated_weight(old, mu, cap=2.0)

    def loss_at(new: Tensor) -> Tensor:
        return ppo.token_sum(ppo.ppo_dual_clip(new, old, advantage, **CLIPS), frozen, mask, total=total)

    leaves = [start.clone().requires_grad_(), old.clone().requires_grad_()]
    ppo.policy_loss(
        leaves[0], leaves[1].detach(), mu, advantage, mask, tis_cap=2.0, total=total, **CLIPS
    ).backward()
    for row, column in [(0, 0), (2, 3), (5, 7), (3, 1)]:
        step = torch.zeros_like(start)
        step[row, column] = 1e-6
        slope = float(loss_at(start + step) - loss_at(start - step)) / 2e-6
        assert float(leaves[0].grad[row, column]) == pytest.approx(slope, abs=1e-7)
    assert not ppo.truncated_weight(leaves[1], mu, cap=2.0).requires_grad


def test_ratio_statistics_count_only_what_the_clip_removed() -> None:
    ratios = [1.0, 1.3, 1.3, 0.7, 0.7, 5.0, 9.0]
    advantages = [1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0]
    new, old, mu = f64(*map(math.log, ratios)), f64(*[0.0] * 7), f64(*[-0.4] * 7)
    mask = torch.tensor([True] * 6 + [False])
    arguments = (new, old, mu, f64(*advantages))
    whole = ppo.ratio_statistics(*arguments, mask, tis_cap=2.0, **CLIPS)
    assert whole.clip_fraction == pytest.approx(3 / 6)
    assert whole.ratio_max == pytest.approx(5.0)
    halves = [
        ppo.ratio_statistics(*(a[s] for a in arguments), mask[s], tis_cap=2.0, **CLIPS)
        for s in (slice(0, 3), slice(3, 7))
    ]
    joined = halves[0].plus(halves[1])
    assert joined.clipped == whole.clipped and joined.tokens == whole.tokens
    assert joined.ess == pytest.approx(whole.ess) == pytest.approx(1.0)
