"""T6 and T17 (thumbs) of algorithms.md, I4, and the ensemble: who learns from whom, what it prices and when."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from feedback.training_section import RewardModelSettings
from online_trainer.reward_model import (
    GOLD,
    Centre,
    Labels,
    Pairs,
    RewardModel,
    Trial,
    balanced_agreement,
    bradley_terry,
    calibrate,
    price,
    seat_of,
    slot_of,
    thumbs_loss,
)

SETTINGS = RewardModelSettings(hidden=32, lr=1e-2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products lose more to waking threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(gap: float, smoothing: float = 0.0, shift: float = 0.0) -> tuple[float, float]:
    better = torch.tensor([gap + shift], dtype=torch.float64, requires_grad=True)
    loss = bradley_terry(better, torch.tensor([shift], dtype=torch.float64), smoothing=smoothing)
    loss.sum().backward()
    return float(loss.detach()), float(better.grad)


@pytest.mark.parametrize(
    ("gap", "loss", "gradient"),
    [(0.0, 0.693147181, -0.5), (1.0, 0.313261688, -0.268941421), (-1.0, 1.313261688, -0.731058579)],
)
def test_t6_bradley_terry(gap: float, loss: float, gradient: float) -> None:
    assert pair(gap) == pytest.approx((loss, gradient), abs=1e-9)
    assert pair(gap, shift=5.0) == pytest.approx((loss, gradient), abs=1e-9)


def test_t6_smoothing_and_margin() -> None:
    assert pair(2.0)[0] == pytest.approx(0.126928011, abs=1e-9)
    assert pair(1.0, smoothing=0.1) == pytest.approx((0.413261688, -0.168941421), abs=1e-9)
    assert pair(2.197224577, smoothing=0.1)[1] == pytest.approx(0.0, abs=1e-9)
    assert float(bradley_terry(torch.tensor([1.5]), torch.tensor([0.0]), margin=0.5)) == pytest.approx(
        0.313261688, abs=1e-6
    )


@pytest.mark.parametrize(("up", "loss", "gradient"), [(1.0, 0.554355, -0.425557), (0.0, 0.854355, 0.574443)])
def test_t17_thumbs(up: float, loss: float, gradient: float) -> None:
    score = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    got = thumbs_loss(
        score, torch.tensor([-0.2], dtype=torch.float64), torch.tensor([up], dtype=torch.float64)
    )
    got.sum().backward()
    assert (float(got.detach()), float(score.grad)) == pytest.approx((loss, gradient), abs=1e-6)


RATERS = [f"rater-{i}" for i in range(60)]
TASTE = torch.randn(12, generator=torch.Generator().manual_seed(5))


def labels(seed: int, count: int, *, noise: float) -> Labels:
    """Answers whose worth is one direction of the features; `noise` of the thumbs are flipped."""
    generator = torch.Generator().manual_seed(seed)
    feature = torch.randn(count, 12, generator=generator)
    good = feature @ TASTE > 0
    flip = torch.rand(count, generator=generator) < noise
    return Labels(feature, tuple(RATERS[i % 60] for i in range(count)), (good ^ flip).float())


def trained(noise: float, steps: int = 80) -> RewardModel:
    model = RewardModel(12, settings=SETTINGS, seed=1)
    data = labels(1, 480, noise=noise)
    for _ in range(steps):
        model.learn(data)
    return model


@pytest.fixture(scope="module")
def taught() -> RewardModel:
    return trained(0.2)


def test_it_learns_taste_through_flipped_thumbs_and_passes_its_trial(taught: RewardModel) -> None:
    trial = taught.trial(labels(1, 480, noise=0.2))
    assert 0.68 < trial.agreement < 0.85
    assert trial.passes(SETTINGS)
    fresh = labels(2, 400, noise=0.0)
    good = fresh.up_N > 0.5
    rho = price(taught.scores(fresh.feature_NF), centred(taught), temperature=trial.temperature, kappa=1.0)
    assert float((rho[good] > 0).float().mean()) > 0.8
    assert float(rho[good].mean()) > 0.15 > -0.15 > float(rho[~good].mean())
    assert float(rho.abs().max()) < 1.0
    gold = taught.gold(fresh.feature_NF)
    assert float(gold[good].mean()) > float(gold[~good].mean()) + 0.5


def centred(model: RewardModel) -> Centre:
    return Centre().after(model.scores(labels(3, 400, noise=0.0).feature_NF), kappa=1.0)


def test_random_thumbs_do_not_pass_the_trial() -> None:
    model = trained(0.5, steps=60)
    assert model.trial(labels(1, 480, noise=0.5)).agreement < SETTINGS.agreement


def test_a_trial_needs_labels_and_agreement() -> None:
    assert Trial(0.62, 60, 1.0).passes(SETTINGS)
    assert not Trial(0.61, 60, 1.0).passes(SETTINGS)
    assert not Trial(0.9, 59, 1.0).passes(SETTINGS)


@pytest.mark.parametrize("seat", [GOLD, 0, 3])
def test_no_member_learns_from_its_own_quarter_nor_any_but_gold_from_gold_raters(seat: int) -> None:
    rater = next(r for r in RATERS if seat_of(r, members=4, gold_share=0.2) == seat)
    model = RewardModel(12, settings=SETTINGS, seed=1)
    model.learn(Labels(torch.randn(8, 12), (rater,) * 8, torch.ones(8)))
    learned = {k for k in range(5) if float(model.heads.inner.grad[k].abs().sum()) > 0}
    assert learned == ({4} if seat == GOLD else {0, 1, 2, 3} - {seat})
    model.learn_pairs(Pairs(torch.randn(4, 12), torch.randn(4, 12), (rater,) * 4))
    assert {k for k in range(5) if float(model.heads.inner.grad[k].abs().sum()) > 0} == learned


def test_each_ordinary_member_hears_about_three_quarters() -> None:
    seats = [seat_of(f"r{i}", members=4, gold_share=0.2) for i in range(4000)]
    assert seats.count(GOLD) / 4000 == pytest.approx(0.2, abs=0.02)
    for quarter in range(4):
        assert seats.count(quarter) / 3200 == pytest.approx(0.25, abs=0.03)


def test_a_harsh_rater_is_absorbed_by_the_bias() -> None:
    """Everybody likes what is good; one rater dislikes everything: the score of a good answer hardly moves."""
    feature = torch.randn(300, 12, generator=torch.Generator().manual_seed(9))
    good = (feature @ TASTE > 0).float()
    ordinary = [r for r in RATERS if seat_of(r, members=4, gold_share=0.2) != GOLD]
    raters = tuple(ordinary[0] if i < 60 else ordinary[1 + i % 20] for i in range(300))
    up = torch.cat([torch.zeros(60), good[60:]])
    model = RewardModel(12, settings=SETTINGS, seed=2)
    for _ in range(60):
        model.learn(Labels(feature, raters, up))
    harsh, kind = (float(model.rater_bias_KR[:-1, slot_of(rater)].detach().mean()) for rater in ordinary[:2])
    assert harsh < kind - 0.2


def test_a_constant_judge_agrees_with_half() -> None:
    up = torch.tensor([1.0] * 70 + [0.0] * 30)
    assert balanced_agreement(torch.ones(100), up) == 0.5
    assert balanced_agreement(up, up) == 1.0
    assert balanced_agreement(-up, up) < 0.5
    assert balanced_agreement(torch.randn(5), torch.ones(5)) == 0.5


def test_calibration_cools_a_judge_that_is_too_sure() -> None:
    score = torch.linspace(-8, 8, 4000)
    up = (torch.rand(4000, generator=torch.Generator().manual_seed(0)) < torch.sigmoid(score / 4)).float()
    assert calibrate(score, up) == pytest.approx(4.0, rel=0.2)
    assert calibrate(score / 32, up) == 1.0


def scores_of(*members: float) -> Tensor:
    return torch.tensor(members, dtype=torch.float64)[:, None]


def test_price_worked_by_hand() -> None:
    """T13's members: bound .283602, std .516398; centred at 0 with signal 1, reliability 1 / (1 + .266667)."""
    rho = price(scores_of(1.0, 0.6, 0.2, 1.4), Centre(0.0, 1.0, 10.0), temperature=1.0, kappa=1.0)
    expected = (2 / (1 + math.exp(-0.283602)) - 1) / (1 + 0.516398**2)
    assert float(rho) == pytest.approx(expected, abs=1e-6)


def test_i4_a_constant_added_to_every_score_changes_no_price() -> None:
    scores = torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = price(scores, Centre().after(scores, kappa=1.0), temperature=1.0, kappa=1.0)
    after = price(scores + 7, Centre().after(scores + 7, kappa=1.0), temperature=1.0, kappa=1.0)
    assert torch.allclose(before, after, atol=1e-9)


def test_doubt_draws_a_price_to_nothing_on_either_side() -> None:
    centre = Centre(0.0, 1.0, 10.0)
    for side in (1.0, -1.0):
        sure = price(side * scores_of(2.0, 2.1, 1.9, 2.0), centre, temperature=1.0, kappa=0.0)
        torn = price(side * scores_of(6.0, -2.0, 6.0, -2.0), centre, temperature=1.0, kappa=0.0)
        assert abs(float(torn)) < 0.1 < 0.7 < abs(float(sure))


def test_nothing_is_priced_before_anything_was_centred() -> None:
    assert float(price(scores_of(3.0, 3.1, 2.9, 3.0), Centre(), temperature=1.0, kappa=1.0)) == 0.0


def test_case_40_a_broken_feature_teaches_nothing() -> None:
    model, data = RewardModel(12, settings=SETTINGS, seed=1), labels(4, 60, noise=0.2)
    before = model.scores(data.feature_NF)
    spoilt = data.feature_NF.clone()
    spoilt[3, 3] = math.nan
    assert math.isnan(model.learn(Labels(spoilt, data.raters, data.up_N)))
    assert torch.equal(model.scores(data.feature_NF), before)


def test_comparisons_alone_teach_a_taste_that_their_raters_share() -> None:
    generator = torch.Generator().manual_seed(4)
    one, other = torch.randn(400, 12, generator=generator), torch.randn(400, 12, generator=generator)
    first = ((one @ TASTE) > (other @ TASTE))[:, None]
    pairs = Pairs(
        torch.where(first, one, other),
        torch.where(first, other, one),
        tuple(RATERS[i % 60] for i in range(400)),
    )
    model = RewardModel(12, settings=SETTINGS, seed=1)
    assert 0.3 < model.pair_trial(pairs) < 0.7
    for _ in range(60):
        model.learn_pairs(pairs.taken(torch.arange(400)))
    assert model.pair_trial(pairs) > 0.8
    assert model.pair_trial(Pairs(pairs.worse_NF, pairs.better_NF, pairs.raters)) < 0.2
    assert model.pair_trial(pairs.taken(torch.arange(0))) == 0.5
