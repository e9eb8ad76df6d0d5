"""The window keeps the opening message and the newest interactions, as slices of recorded ids."""

from serving.loop.window import fit

HEAD, ONE, TWO, THREE = [1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4]
IDS = HEAD + ONE + TWO + THREE
STARTS = [2, 5, 8]


def test_what_fits_is_kept_whole() -> None:
    assert fit(IDS, STARTS, keep=1, budget=11) == (IDS, STARTS)


def test_the_oldest_go_first_and_starts_move_with_them() -> None:
    assert fit(IDS, STARTS, keep=9, budget=10) == (HEAD + TWO + THREE, [2, 5])
    assert fit(IDS, STARTS, keep=9, budget=7) == (HEAD + THREE, [2])


def test_once_something_goes_at_most_keep_interactions_stay() -> None:
    assert fit(IDS, STARTS, keep=1, budget=10) == (HEAD + THREE, [2])


def test_the_newest_must_fit() -> None:
    assert fit(IDS, STARTS, keep=9, budget=4) is None
    assert fit([1, 1, 2, 2], [2], keep=6, budget=3) is None
