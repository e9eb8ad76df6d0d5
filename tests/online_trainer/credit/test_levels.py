"""The two-level rule and exact-state groups, by numbers worked by hand."""

import pytest
import torch
from torch import Tensor

from online_trainer.credit.gae import Gae
from online_trainer.credit.groups import state_means
from online_trainer.credit.levels import TwoLevels

REWARD = torch.tensor([[0.0, 0.0, 1.0], [0.0, -1.0, 0.0]], dtype=torch.float64)
VALUE = torch.tensor([[0.4, 0.5, 0.9], [0.2, 0.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])
NOTHING = torch.zeros(2, dtype=torch.float64)


def rule(weight: Tensor, *, omega: float = 1.0, work: Tensor = MASK, compared: Tensor = MASK) -> TwoLevels:
    return TwoLevels(1.0, omega, weight, work, compared)


def test_both_levels_worked_by_hand() -> None:
    """Whole: .6 and -1.2. Turns: .6 .5 .1 and -1.2 -1."""
    got = rule(torch.tensor([2.0, 1.0]), omega=0.5)(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING)
    assert got.advantage_EH[0].tolist() == pytest.approx([1.5, 1.45, 1.25])
    assert got.advantage_EH[1].tolist() == pytest.approx([-1.8, -1.7, 0.0])
    assert got.return_EH.tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]]


def test_a_turn_without_a_counterpart_gets_the_episodes_part_alone() -> None:
    compared = torch.tensor([[True, False, True], [False, False, False]])
    got = rule(torch.ones(2), compared=compared)(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING)
    assert got.advantage_EH[0].tolist() == pytest.approx([1.2, 0.6, 0.7])
    assert got.advantage_EH[1].tolist() == pytest.approx([-1.2, -1.2, 0.0])


def test_the_episodes_part_stays_away_from_courtesies_and_from_unknown_outcomes() -> None:
    work = torch.tensor([[True, True, False], [True, True, False]])
    got = rule(torch.tensor([1.0, 0.0]), work=work)(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING)
    assert got.advantage_EH[0].tolist() == pytest.approx([1.2, 1.1, 0.1])
    assert got.advantage_EH[1].tolist() == pytest.approx([-1.2, -1.0, 0.0])


def test_turns_alone_are_monte_carlo_and_i3_holds() -> None:
    steps = rule(torch.zeros(2))(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING)
    plain = Gae(1.0, 1.0)(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING)
    assert torch.equal(steps.advantage_EH, plain.advantage_EH)
    both = rule(torch.tensor([1.02, 0.98]))
    once = both(REWARD, VALUE, mask_EH=MASK, bootstrap_E=NOTHING).advantage_EH
    more = both(3 * REWARD, 3 * VALUE, mask_EH=MASK, bootstrap_E=NOTHING).advantage_EH
    assert torch.allclose(more, 3 * once)


def test_a_state_is_compared_with_other_episodes_in_it() -> None:
    mean, found = state_means(
        ["s", "s", "t", "u", "v"],
        ["a", "b", "a", "z", "a"],
        replay_states_R=["s", "s", "s", "t", "u", "u"],
        replay_episodes_R=["a", "a", "b", "a", "b", "c"],
        replay_return_R=torch.tensor([1.0, 0.5, -1.0, 0.3, 0.2, 0.6]),
    )
    assert found.tolist() == [True, True, False, True, False]
    assert mean.tolist() == pytest.approx([-1.0, 0.75, 0.0, 0.4, 0.0])
