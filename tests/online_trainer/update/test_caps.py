"""I10: no rater and no episode outweighs its share, and nothing is handed to others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.training_section import BatchSettings
from online_trainer.update.caps import capped_factors, influence_factors

weights = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 30)), min_size=1, max_size=60)


def kept_by_rater(given_weights: list[float], raters: list[str], factors: list[float]) -> dict[str, float]:
    kept: dict[str, float] = {}
    for weight, rater, factor in zip(given_weights, raters, factors, strict=True):
        kept[rater] = kept.get(rater, 0.0) + weight * factor
    return kept


@settings(max_examples=80, deadline=None)
@given(weights, st.sampled_from([0.05, 0.1, 0.3, 1.0]), st.sampled_from([0.05, 0.1, 0.4, 1.0]))
def test_i10_no_share_exceeds_its_cap(
    episodes: list[tuple[float, int]], rater_share: float, episode_share: float
) -> None:
    amounts, raters = [w for w, _ in episodes], [str(r) for _, r in episodes]
    factors = capped_factors(amounts, raters, rater_share=rater_share, episode_share=episode_share)
    assert all(0.0 <= f <= 1.0 for f in factors)
    kept = kept_by_rater(amounts, raters, factors)
    total = sum(kept.values())
    assert all(v <= rater_share * total * (1 + 1e-9) + 1e-12 for v in kept.values())
    assert all(
        w * f <= episode_share * total * (1 + 1e-9) + 1e-12 for w, f in zip(amounts, factors, strict=True)
    )


crowd = st.lists(st.floats(0.01, 100), min_size=15, max_size=45)


@settings(max_examples=60, deadline=None)
@given(crowd, st.sampled_from([0.1, 0.2]))
def test_only_the_heavy_lose_weight(amounts: list[float], share: float) -> None:
    raters = [str(i % 15) for i in range(len(amounts))]
    factors = capped_factors(amounts, raters, rater_share=share, episode_share=1.0)
    kept = kept_by_rater(amounts, raters, factors)
    total = sum(kept.values())
    assert total > 0.1
    for rater, factor in zip(raters, factors, strict=True):
        if factor < 1.0 - 1e-9:
            assert kept[rater] == pytest.approx(share * total, rel=1e-6)


def test_the_fixed_point_worked_by_hand() -> None:
    """One rater with 90 of 101 and eleven with 1 each: T = 11 + T/10, so T = 110/9 and the heavy one keeps 11/9."""
    factors = capped_factors(
        [90.0] + [1.0] * 11, [str(i) for i in range(12)], rater_share=0.1, episode_share=1.0
    )
    assert factors[0] == pytest.approx(11 / 9 / 90)
    assert factors[1:] == [1.0] * 11


def test_both_caps_at_once() -> None:
    """Forty episodes of 1 by others; one rater has episodes 10 and 1: T = 40 + min(T/10, T/20 + 1)."""
    factors = capped_factors(
        [10.0, 1.0] + [1.0] * 40,
        ["a", "a"] + [str(i) for i in range(40)],
        rater_share=0.1,
        episode_share=0.05,
    )
    total = 41 / 0.95
    assert factors[0] == pytest.approx(total / 20 / 10)
    assert factors[1:] == [1.0] * 41


def test_ten_equal_raters_just_fit_and_nine_do_not() -> None:
    ten = capped_factors([1.0] * 10, [str(i) for i in range(10)], rater_share=0.1, episode_share=1.0)
    assert ten == pytest.approx([1.0] * 10)
    nine = capped_factors([1.0] * 9, [str(i) for i in range(9)], rater_share=0.1, episode_share=1.0)
    assert nine == [0.0] * 9


def test_a_single_user_lifts_the_raters_cap_and_keeps_the_episodes() -> None:
    alone = BatchSettings(single_user=True)
    assert influence_factors([1.0] * 20, ["me"] * 20, settings=alone) == [1.0] * 20
    factors = influence_factors([50.0] + [1.0] * 19, ["me"] * 20, settings=alone)
    assert factors[0] == pytest.approx(19 / 0.9 / 10 / 50)
    assert influence_factors([1.0] * 20, ["me"] * 20, settings=BatchSettings()) == [0.0] * 20


@settings(max_examples=40, deadline=None)
@given(crowd, st.lists(st.booleans(), min_size=45, max_size=45), st.integers(0, 14))
def test_i10_one_raters_ratings_move_the_sum_by_at_most_the_cap(
    amounts: list[float], up: list[bool], who: int
) -> None:
    """Taken away they move it by one cap; all flipped, by two, which is as far as their weight can reach."""
    raters = [i % 15 for i in range(len(amounts))]
    factors = capped_factors(amounts, [str(r) for r in raters], rater_share=0.1, episode_share=0.1)
    kept = [a * f for a, f in zip(amounts, factors, strict=True)]
    signed = [k if u else -k for k, u in zip(kept, up, strict=False)]
    without = sum(s for s, r in zip(signed, raters, strict=True) if r != who)
    flipped = sum(-s if r == who else s for s, r in zip(signed, raters, strict=True))
    cap = 0.1 * sum(kept) * (1 + 1e-9)
    assert abs(sum(signed) - without) <= cap
    assert abs(sum(signed) - flipped) <= 2 * cap
