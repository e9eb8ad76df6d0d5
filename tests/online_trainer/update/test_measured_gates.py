"""Gates on measured change: worked by hand, shut only by what is sure, blind to what nobody compared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from feedback.training_section import Training, Trust
from online_trainer.judge import Judgement
from online_trainer.reward_model import Centre, Trial
from online_trainer.update import trust
from online_trainer.update.measured_gates import Change, change, gain, probe_change, probe_fault, quantile


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("degrees", "value"), [(3, 2.3534), (5, 2.0150), (30, 1.6973), (10**7, 1.6448536)])
def test_the_quantile_is_students(degrees: int, value: float) -> None:
    assert quantile(degrees) == pytest.approx(value, abs=0.01)


def test_a_change_worked_by_hand() -> None:
    """Means of three episodes 1, 2, 3: mean 2, standard error 1 / sqrt(3)."""
    found = change(f64(1, 2, 3), torch.tensor([0, 1, 2]))
    assert (found.mean, found.count) == (2.0, 3)
    assert found.upper == pytest.approx(2 + quantile(2) / math.sqrt(3))
    assert not found.is_beyond(0.0)
    assert Change(-0.3, -0.11, 9).is_beyond(0.1) and not Change(-0.3, -0.09, 9).is_beyond(0.1)


def test_turns_of_one_episode_count_once() -> None:
    single = change(f64(1, 2, 3, 5), torch.tensor([0, 1, 2, 3]))
    tenfold = change(f64(1, 2, 3, 5).repeat(10), torch.tensor([7, 8, 9, 4]).repeat(10))
    assert tenfold.upper == pytest.approx(single.upper)


def test_too_little_is_no_change_at_all() -> None:
    for found in (
        change(f64(-9, -9), torch.tensor([0, 1])),
        change(f64(), torch.tensor([])),
        change(f64(math.nan, 1, 2), torch.tensor([0, 1, 2])),
    ):
        assert found == Change() and not found.is_beyond(0.0)


def test_noise_shuts_a_gate_about_once_in_twenty() -> None:
    generator = torch.Generator().manual_seed(3)
    shut = sum(
        change(torch.randn(40, generator=generator), torch.arange(40) // 2).is_beyond(0.0)
        for _ in range(1000)
    )
    assert 25 <= shut <= 80


def two_answers(old: float, new: float, *, good: int, bad: int, mu: float | None = None) -> Change:
    """One-token turns: the good answer's chance goes from `old` to `new`; so many of each were sampled by `mu`."""
    mu = old if mu is None else mu
    move = f64(*[math.log(new / old)] * good, *[math.log((1 - new) / (1 - old))] * bad)
    weight = f64(*[old / mu] * good, *[(1 - old) / (1 - mu)] * bad)
    turn = torch.arange(good + bad)
    return gain(f64(*[1.0] * good, *[0.0] * bad), move_N=move, weight_N=weight, turn_N=turn, episode_M=turn)


def test_the_gain_is_the_change_of_the_expected_score() -> None:
    up = two_answers(0.5, 0.6, good=5, bad=5)
    assert up.mean == pytest.approx(0.1 / 0.5) and up.upper == pytest.approx(0.2)
    down = two_answers(0.5, 0.4, good=5, bad=5)
    assert down.mean == pytest.approx(-0.2) and down.is_beyond(0.1) and not down.is_beyond(0.3)
    assert two_answers(0.5, 0.5, good=5, bad=5).mean == 0.0


def test_what_another_policy_sampled_is_weighed() -> None:
    found = two_answers(0.5, 0.6, good=6, bad=4, mu=0.6)
    assert found.mean == pytest.approx(0.1 / math.sqrt(0.24))


def test_a_turn_moves_by_the_sum_of_its_tokens_and_only_measured_and_judged_turns_count() -> None:
    """Turns 0 to 2 of one answer each: +.1 +.1, -.2, 0; turn 3 was not measured, turn 4 is not judged."""
    score = f64(1.0, 0.0, 0.5, 9.0, math.nan)
    found = gain(
        score,
        move_N=f64(0.1, 0.1, -0.2, 0.0, 0.7),
        weight_N=torch.ones(5),
        turn_N=torch.tensor([0, 0, 1, 2, 4]),
        episode_M=torch.arange(5),
    )
    spread = math.sqrt(1 / 6)
    assert found.count == 3
    assert found.mean == pytest.approx((math.expm1(0.2) * 0.5 - math.expm1(-0.2) * 0.5) / 3 / spread)
    same = gain(
        torch.ones(3, dtype=torch.float64),
        move_N=f64(1, 1, 1),
        weight_N=torch.ones(3),
        turn_N=torch.arange(3),
        episode_M=torch.arange(3),
    )
    assert same == Change()


QUIET = dict.fromkeys(("k3_old", "k3_mu", "kl_ref", "m2", "turn_kl", "big_move_share"), 1e-6) | {
    "ess": 0.95,
    "clip_fraction": 0.0,
    "grad_norm": 1.0,
    "tokens": 10.0,
}


def test_the_gold_gate_refuses_only_where_it_is_set() -> None:
    worse = trust.Measures(**QUIET, gold_gain=-0.3, gold_upper=-0.1, gold_turns=20.0)
    usual = Training()
    strict = Training(trust=Trust(gold_drop=0.05))
    assert trust.judge(worse, trust.Limits.of(usual)) == ()
    assert trust.judge(worse, trust.Limits.of(strict)) == ("gold_upper -0.1 < -0.05",)
    assert trust.judge(worse, trust.Limits.of(Training(trust=Trust(gold_drop=0.2)))) == ()
    unknown = trust.Measures(**QUIET)
    assert trust.judge(unknown, trust.Limits.of(Training(trust=Trust(gold_drop=0.0)))) == ()


def conversations(shift: float, count: int = 4) -> list[list[float]]:
    return [[-1.0 + shift + 0.001 * (number % 2)] * 12 for number in range(count)]


def test_the_probe_refuses_a_sure_loss_beyond_its_limit() -> None:
    lost = probe_change(conversations(-0.03), conversations(0.0))
    assert lost.mean == pytest.approx(-0.03)
    assert probe_fault(lost, drop=0.02) == ("probe -0.03 < -0.0198",)
    assert probe_fault(lost, drop=None) == probe_fault(lost, drop=0.05) == ()
    assert probe_fault(probe_change(conversations(0.03), conversations(0.0)), drop=0.0) == ()
    few = probe_change(conversations(-9.0, count=2), conversations(0.0, count=2))
    assert probe_fault(few, drop=0.0) == ()


def test_opinions_are_of_the_turns_that_a_judge_has_read() -> None:
    made = Judgement(
        Trial(0.7, 80, 1.0), True, {}, Centre(), views={("a", 1): (0.5, 0.25), ("b", 0): (-0.5, 0.0)}
    )
    found = made.opinions([("a", 0), ("a", 1), ("b", 0)])
    assert found is not None
    assert found.gold_M.tolist()[1:] == [0.5, -0.5] and math.isnan(found.gold_M[0])
    assert found.judge_M.tolist()[1:] == [0.25, 0.0]
    assert found.episode_M.tolist() == [0, 0, 1]
    assert Judgement(Trial(0.7, 80, 1.0), True, {}, Centre()).opinions([("a", 0)]) is None
