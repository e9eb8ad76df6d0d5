"""The measured trust region: what is measured, what is refused, how it backs off; I9, I13 and case 37's numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from feedback.schemas import Decision
from feedback.training_section import BatchSettings, Optimizer, Staleness, Training, Trust
from online_trainer.pause import Pause
from online_trainer.staleness import stale_reason
from online_trainer.update import trust
from online_trainer.update.learning_rate import LearningRate
from online_trainer.update.ppo import RatioStatistics

LIMITS = trust.Limits.of(Training())
GOOD = trust.Measures(
    k3_old=5e-4,
    k3_mu=0.005,
    kl_ref=0.01,
    m2=0.001,
    turn_kl=0.02,
    big_move_share=0.001,
    ess=0.9,
    clip_fraction=0.01,
    grad_norm=1.0,
    tokens=5000.0,
)


def measured(
    new: Tensor, old: Tensor, reference: Tensor, ids: Tensor, mu: Tensor, turn: Tensor
) -> trust.Measures:
    """Of logits, measured in two chunks, as a real update is."""
    new, old, reference = (logits.log_softmax(-1) for logits in (new, old, reference))
    cuts = (slice(0, 7), slice(7, None))
    chunks = [
        trust.moves(
            ids[c], turn[c], new_NV=new[c], old_NV=old[c], reference_NV=reference[c], mu_N=mu[c], tis_cap=2.0
        )
        for c in cuts
    ]
    return trust.measure(chunks, statistics=RatioStatistics(tokens=20, clipped=1), grad_norm=0.5)


def a_step(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """old logits, a direction, sampled ids and turns: 20 tokens in 4 turns, 11 words."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(20, 11, generator=generator, dtype=torch.float64)
    direction = 0.05 * torch.randn(20, 11, generator=generator, dtype=torch.float64)
    ids = torch.multinomial(old.softmax(-1), 1, generator=generator)[:, 0]
    return old, direction, ids, torch.arange(20) // 5


def logprob(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def test_case_37_no_move_measures_nothing_and_passes() -> None:
    old, _, ids, turn = a_step()
    got = measured(old, old, old, ids, logprob(old, ids), turn)
    assert (got.k3_old, got.k3_mu, got.kl_ref, got.m2, got.turn_kl, got.big_move_share) == (0.0,) * 6
    assert got.ess == pytest.approx(1.0)
    assert got.clip_fraction == 0.05 and got.grad_norm == 0.5 and got.tokens == 20.0
    assert trust.judge(got, LIMITS) == ()


def test_measures_of_one_three_way_choice_worked_by_hand() -> None:
    """Twenty tokens, one of which falls from .9 to .3: KL(old || new) there is .9 log 3 + .1 log(.05 / .35)."""
    old = torch.tensor([[0.9, 0.05, 0.05]], dtype=torch.float64).log().repeat(20, 1)
    new = old.clone()
    new[3] = torch.tensor([0.3, 0.35, 0.35], dtype=torch.float64).log()
    ids, turn = torch.zeros(20, dtype=torch.long), torch.arange(20) // 5
    mu = torch.full((20,), math.log(0.9) + math.log(2.0), dtype=torch.float64)
    collapse = 0.9 * math.log(3) + 0.1 * math.log(0.05 / 0.35)
    towards = 0.3 * math.log(0.3 / 0.9) + 0.7 * math.log(0.35 / 0.05)
    got = measured(new, old, old, ids, mu, turn)
    assert got.k3_old == pytest.approx(collapse / 20, abs=1e-12)
    assert got.kl_ref == pytest.approx(towards / 20, abs=1e-12)
    assert got.turn_kl == pytest.approx(collapse / 4, abs=1e-12)
    assert got.m2 == pytest.approx(math.log(3) ** 2 / 20, abs=1e-12)
    assert got.big_move_share == pytest.approx(1 / 20)
    near, far = math.log(0.5), math.log(0.3 / 1.8)
    k3 = lambda d: math.exp(d) - 1 - d  # noqa: E731
    assert got.k3_mu == pytest.approx((19 * k3(near) + k3(far)) / 20, abs=1e-12)
    assert trust.judge(got, LIMITS)[0].startswith("k3_old")


def test_a_collapse_of_one_choice_in_ninety_three_tokens_is_refused() -> None:
    """It costs .0085 a token: a limit of .01 would have let it pass (algorithms.md 9.6)."""
    collapse = (0.9 * math.log(3) + 0.1 * math.log(0.05 / 0.35)) / 93
    assert collapse == pytest.approx(0.0085, abs=1e-4)
    assert trust.judge(replace(GOOD, k3_old=collapse), LIMITS) != ()


def test_what_the_head_abandoned_does_not_count_as_a_big_move() -> None:
    """The sampler still takes a choice that the head gave up; moving it further is no move of the head's tokens."""
    old = torch.tensor([[0.999, 0.001]], dtype=torch.float64).log().repeat(20, 1)
    new = old.clone()
    new[:3] = torch.tensor([0.9998, 0.0002], dtype=torch.float64).log()
    ids = torch.tensor([1] * 3 + [0] * 17)
    mu = torch.tensor([math.log(0.6)] * 3 + [math.log(0.999)] * 17, dtype=torch.float64)
    got = measured(new, old, old, ids, mu, torch.arange(20) // 5)
    assert got.big_move_share < 0.001
    assert got.m2 < 0.001


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_i13_half_the_step_measures_a_quarter(seed: int) -> None:
    old, direction, ids, turn = a_step(seed)
    mu = logprob(old, ids)
    full, half = (measured(old + s * direction, old, old, ids, mu, turn) for s in (1.0, 0.5))
    for name in ("k3_old", "kl_ref", "turn_kl", "m2"):
        assert 3.5 < vars(full)[name] / vars(half)[name] < 4.5
    assert full.k3_old > 1e-4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k3_old", 2.1e-3),
        ("k3_mu", 0.021),
        ("kl_ref", 0.081),
        ("m2", 0.041),
        ("turn_kl", 0.11),
        ("big_move_share", 0.011),
        ("ess", 0.49),
        ("k3_old", math.nan),
        ("grad_norm", math.inf),
    ],
)
def test_each_limit_refuses_by_itself(name: str, value: float) -> None:
    assert trust.judge(GOOD, LIMITS) == ()
    reasons = trust.judge(replace(GOOD, **{name: value}), LIMITS)
    assert len(reasons) == 1 and name in reasons[0]


def test_a_single_user_halves_the_kl_limits_only() -> None:
    alone = trust.Limits.of(Training(batch=BatchSettings(single_user=True)))
    for name in ("k3_old_stop", "k3_old_refuse", "k3_mu", "kl_ref", "turn_kl"):
        assert vars(alone)[name] == vars(LIMITS)[name] / 2
    assert (alone.m2, alone.ess, alone.big_move_share) == (LIMITS.m2, LIMITS.ess, LIMITS.big_move_share)


def at_scale(full: float, seen: list[float]) -> object:
    """A measured step whose k3 goes with the square of its scale."""

    def measure_at(scale: float) -> trust.Measures:
        seen.append(scale)
        return replace(GOOD, k3_old=full * scale * scale)

    return measure_at


@pytest.mark.parametrize(
    ("full", "scale", "decision", "tried"),
    [
        (1.9e-3, 1.0, Decision.ACCEPTED, [1.0]),
        (4e-3, 0.5, Decision.SHRUNK, [1.0, 0.5]),
        (0.03, 0.25, Decision.SHRUNK, [1.0, 0.5, 0.25]),
        (0.04, 0.0, Decision.REFUSED, [1.0, 0.5, 0.25]),
        (math.nan, 0.0, Decision.REFUSED, [1.0]),
    ],
)
def test_backtrack(full: float, scale: float, decision: Decision, tried: list[float]) -> None:
    seen: list[float] = []
    outcome = trust.backtrack(at_scale(full, seen), LIMITS)  # type: ignore[arg-type]
    assert (outcome.scale, outcome.decision, seen) == (scale, decision, tried)
    assert bool(outcome.reasons) == (decision is not Decision.ACCEPTED)


def test_only_finite_measures_are_reported() -> None:
    assert "k3_old" not in replace(GOOD, k3_old=math.nan).as_dict()
    assert GOOD.as_dict()["kl_ref"] == 0.01


def test_the_epoch_stops_before_the_update_would_be_refused() -> None:
    assert trust.should_stop(9e-4, 0.1, limits=LIMITS) is None
    assert trust.should_stop(1.1e-3, 0.1, limits=LIMITS) is not None
    assert trust.should_stop(1e-4, 0.21, limits=LIMITS) is not None
    assert trust.should_stop(math.nan, 0.0, limits=LIMITS) is not None


def test_a_wild_gradient_is_skipped() -> None:
    assert trust.wild_gradient(9.0, [0.5, 1.0, 30.0]) is None
    assert trust.wild_gradient(11.0, [0.5, 1.0, 30.0]) is not None
    assert trust.wild_gradient(1e6, []) is None
    assert trust.wild_gradient(math.inf, []) is not None


def test_a_turn_the_head_has_outgrown_is_dropped_and_one_it_abandoned_is_not() -> None:
    old = torch.tensor([0.0, 0.0, -0.1, math.log(0.05), -1.0, -3.0])
    mu = torch.tensor([-1.5, -0.6, -0.1, math.log(0.6), -2.9, -1.0])
    turn = torch.tensor([0, 0, 0, 1, 2, 2])
    nats = trust.surprise(old, mu, turn, turns=3)
    assert nats.tolist() == pytest.approx([2.1, 0.0, 1.9], abs=1e-6)
    assert trust.too_far(old, mu, turn, turns=3, settings=Staleness()).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("lag", "update_lag", "age_s", "reason"),
    [
        (4, 16, 48 * 3600, None),
        (5, 0, 0, "stale_version"),
        (0, 17, 0, "stale_updates"),
        (0, 0, 48 * 3600 + 1, "stale_age"),
    ],
)
def test_i9_staleness(lag: int, update_lag: int, age_s: float, reason: str | None) -> None:
    assert stale_reason(lag=lag, update_lag=update_lag, age_s=age_s, settings=Staleness()) == reason


def run(rate: LearningRate, measured: list[float], decision: Decision = Decision.ACCEPTED) -> LearningRate:
    for value in measured:
        rate = rate.after(value, decision)
    return rate


def test_the_rate_rises_after_three_quiet_updates_at_that_rate() -> None:
    start = LearningRate.start(Optimizer(lr_start=1e-4))
    assert run(start, [1e-4, 1e-4]).rate == 1e-4
    assert run(start, [1e-4, 9e-4, 1e-4]).rate == pytest.approx(1.5e-4)
    assert run(start, [1e-4, 9e-4, 3e-4]).rate == 1e-4
    assert run(start, [1e-4] * 5).rate == pytest.approx(1.5e-4)
    assert run(start, [1e-4] * 6).rate == pytest.approx(2.25e-4)


def test_the_rate_falls_by_half_after_a_loud_a_shrunk_or_a_refused_update() -> None:
    start = LearningRate.start(Optimizer(lr_start=1e-4))
    assert run(start, [1.1e-3]).rate == 5e-5
    assert run(start, [1e-4], Decision.SHRUNK).rate == 5e-5
    assert run(start, [math.nan], Decision.REFUSED).rate == 5e-5
    assert run(start, [math.nan]).rate == 5e-5


def test_a_verdict_on_where_the_policy_stood_leaves_the_rate() -> None:
    start = LearningRate.start(Optimizer(lr_start=1e-4))
    stood = ("k3_mu 0.03 > 0.02", "ess 0.4 < 0.5")
    assert start.after(1e-5, Decision.REFUSED, stood) == start
    assert start.after(1e-5, Decision.REFUSED, (*stood, "m2 0.1 > 0.04")).rate == 5e-5
    assert start.after(1e-5, Decision.SHRUNK, stood) == start
    assert start.after(1e-5, Decision.REFUSED, ("non_finite k3_mu",)).rate == 5e-5


def test_the_rate_stays_within_bounds_and_a_fixed_one_stays() -> None:
    start = LearningRate.start(Optimizer(lr_start=1e-3, lr_min=1e-6, lr_max=3e-3))
    assert run(start, [0.0] * 60).rate == 3e-3
    assert run(start, [1.0] * 60).rate == 1e-6
    assert run(LearningRate.start(Optimizer(lr=2e-4)), [1.0] * 3).rate == 2e-4


def test_learning_pauses_at_the_sixth_refusal_in_a_row_or_at_a_nan_and_comes_back() -> None:
    settings, why = Trust(), ("k3_old 0.1 > 0.002",)
    pause = Pause()
    for _ in range(5):
        pause = pause.after(Decision.REFUSED, why, now_ms=1000, settings=settings)
    assert not pause.active(1000)
    assert not pause.after(Decision.SHRUNK, why, now_ms=1000, settings=settings).refusals
    sixth = pause.after(Decision.REFUSED, why, now_ms=1000, settings=settings)
    assert sixth.active(1000) and sixth.active(1_800_999) and not sixth.active(1_801_000)
    assert Pause().after(Decision.REFUSED, ("non_finite k3_old",), now_ms=0, settings=settings).active(0)
