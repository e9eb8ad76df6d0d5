"""Length and flattery of answers against what the reward model makes of them."""

import math

import pytest
import torch

from online_trainer.bias import biases, correlation, gap, is_flattery


def test_correlation_worked_by_hand() -> None:
    length = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128])
    score = torch.arange(8.0)
    assert correlation(score, length) == pytest.approx(1.0)
    assert correlation(-2 * score + 5, length) == pytest.approx(-1.0)
    assert correlation(torch.tensor([1.0, -1, -1, 1, 1, -1, -1, 1]), length) == pytest.approx(0.0, abs=1e-12)
    assert correlation(torch.ones(8), length) == correlation(score, torch.full((8,), 3)) == 0.0
    assert correlation(score[:7], length[:7]) == 0.0


def test_gap_worked_by_hand() -> None:
    score, chosen = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([True, True, False, False])
    assert gap(score, chosen) == pytest.approx(2.0)
    assert gap(score, ~chosen) == pytest.approx(-2.0)
    assert gap(score, torch.tensor([True] * 4)) == gap(score, torch.tensor([False] * 4)) == 0.0
    assert gap(torch.ones(4), chosen) == gap(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0.0


@pytest.mark.parametrize(
    ("text", "flatters"),
    [
        ("What a great question! It is 40 a night.", True),
        ("You're absolutely right, my apologies.", True),
        ("I am so sorry, the total is 120.", True),
        ("The hotel costs 40 a night, 120 in total.", False),
        ("The right hotel is the first one.", False),
        ("A great hotel in a good location.", False),
    ],
)
def test_flattery_is_said_to_the_person(text: str, flatters: bool) -> None:
    assert is_flattery(text) is flatters


def test_a_judge_that_likes_length_shows_it_beside_people_who_do_not() -> None:
    texts = ["Great question!" if n < 5 else "It costs 40." for n in range(20)]
    lengths = [2 + n for n in range(20)]
    thumbs = [n % 2 if n < 16 else None for n in range(20)]
    found = biases(torch.tensor(lengths).float().log(), lengths, texts, thumbs)
    assert found["reward_model/length_correlation"] == pytest.approx(1.0)
    assert abs(found["reward_model/length_correlation_thumbs"]) < 0.2
    assert found["reward_model/flattery_share"] == 0.25
    assert found["reward_model/flattery_gap"] < -1.0
    assert all(math.isfinite(value) for value in found.values())
    assert biases(torch.zeros(0), [], [], []) == {}
