"""What counts in a row of repeats can be worked out by looking back, and nothing else counts."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from online_trainer.bootstrap.repeats import repeat_batch, repeat_row

VOCABULARY = 50_000  # so large that two segments hardly ever share a token


def row(seed: int, length: int = 128) -> tuple[list[int], list[bool]]:
    return repeat_row(VOCABULARY, length, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 10_000))
def test_a_counted_token_followed_its_predecessor_before(seed: int) -> None:
    ids, mask = row(seed)
    seen: set[tuple[int, int]] = set()
    for place in range(1, len(ids)):
        pair = (ids[place - 1], ids[place])
        assert not mask[place] or pair in seen
        seen.add(pair)


@given(seed=st.integers(0, 10_000))
def test_a_token_seen_for_the_first_time_never_counts(seed: int) -> None:
    ids, mask = row(seed)
    assert not any(mask[ids.index(token)] for token in set(ids))


def test_most_of_a_row_is_repetition_and_its_segments_have_the_stated_sizes() -> None:
    rows = [row(seed) for seed in range(300)]
    assert all(len(ids) == len(mask) == 128 for ids, mask in rows)
    assert 0.5 < sum(sum(mask) for _, mask in rows) / (300 * 128) < 0.8
    assert min(len(set(ids)) for ids, _ in rows) >= 3 * 2 and max(len(set(ids)) for ids, _ in rows) <= 8 * 8


def test_a_batch_follows_from_its_generator() -> None:
    first, again, other = (
        repeat_batch(90, rows=3, length=20, generator=torch.Generator().manual_seed(seed))
        for seed in (4, 4, 5)
    )
    assert torch.equal(first.ids_BT, again.ids_BT) and torch.equal(first.mask_BT, again.mask_BT)
    assert not torch.equal(first.ids_BT, other.ids_BT)
    assert first.ids_BT.shape == first.mask_BT.shape == (3, 20) and int(first.ids_BT.max()) < 90
