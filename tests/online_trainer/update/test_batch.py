"""Rows, masks and the one-token shift, on ids whose right places are written out (cases 21, 23, 24, 41)."""

import pytest

from feedback.schemas import Experience, Sampling
from online_trainer.update.batch import NothingToTrain, Row, build, lay_out, mark, pack, token_positions
from tests.online_trainer.tiny import experience, priced

P, A, T, EOS = 7, 8, 9, 4


def rows_of(item: Experience) -> tuple[Row, ...]:
    return lay_out(item, max_length=256)


def two_turns(prefix: tuple[int, ...]) -> Experience:
    """`[p p p | a a a a | t t t | a a a a a]`, or a second prompt that begins otherwise."""
    first = priced([P] * 3, [A] * 4, [-1.0] * 4)
    second = priced([*prefix, T, T, T], [A] * 5, [-2.0] * 5, index=1)
    return experience(1, [first, second], thumb=1)


def test_turns_merge_only_where_the_next_prompt_extends_the_last_exactly() -> None:
    (row,) = rows_of(two_turns((P, P, P, A, A, A, A)))
    assert len(row.ids) == 15
    assert [(span.start, span.stop) for span in row.spans] == [(3, 7), (10, 15)]
    apart = rows_of(two_turns((P, P, P, A, A, A, 5)))
    assert [len(row.ids) for row in apart] == [7, 15]
    assert [row.trained for row in apart] == [4, 5]


def test_trained_count_is_the_number_of_sampled_ids_and_tool_results_never_count() -> None:
    batch = build(rows_of(two_turns((P, P, P, A, A, A, A))))
    assert batch.tokens == 9
    assert batch.total_ids == 15
    assert batch.target_N.tolist() == [A] * 9
    assert batch.mu_N.tolist() == [-1.0] * 4 + [-2.0] * 5
    assert batch.turns == (("ep_000001", 0), ("ep_000001", 1))
    assert batch.turn_N.tolist() == [0] * 4 + [1] * 5


def test_a_position_predicts_the_id_after_it() -> None:
    (row,) = rows_of(two_turns((P, P, P, A, A, A, A)))
    assert token_positions(row) == [2, 3, 4, 5, 9, 10, 11, 12, 13]


def test_a_sampled_stop_id_is_trained_padding_never_even_when_it_is_the_same_id() -> None:
    short = rows_of(experience(1, [priced([P, P], [A, A, EOS], [-1.0, -1.0, -0.5])], thumb=1))
    long = rows_of(experience(2, [priced([P, P], [A, A, A, A], [-1.0] * 4)], thumb=1))
    batch = build([*short, *long])
    assert batch.target_N.tolist() == [A, A, EOS, A, A, A, A]
    (both,) = pack(batch.rows, token_positions, token_budget=1000)
    assert both.ids_BT.tolist() == [[P, P, A, A, A], [P, P, A, A, 0]]
    assert both.row_P.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert both.position_P.tolist() == [1, 2, 3, 4, 1, 2, 3]
    assert both.index_P.tolist() == [3, 4, 5, 6, 0, 1, 2]


def test_passes_stay_within_the_token_budget_and_cover_every_position_once() -> None:
    items = [
        experience(n, [priced([P] * (1 + n % 5), [A] * (1 + n % 7), [-1.0] * (1 + n % 7))], thumb=1)
        for n in range(20)
    ]
    rows = [row for item in items for row in rows_of(item)]
    packs = pack(rows, token_positions, token_budget=24)
    assert all(part.ids_BT.numel() <= 24 for part in packs)
    assert sorted(i for part in packs for i in part.index_P.tolist()) == list(
        range(sum(row.trained for row in rows))
    )


def test_a_long_row_does_not_pad_the_short_ones() -> None:
    lengths = [60, 10, 9, 9, 4]
    items = [
        experience(n, [priced([P], [A] * length, [-1.0] * length)], thumb=1)
        for n, length in enumerate(lengths)
    ]
    packs = pack([row for item in items for row in rows_of(item)], token_positions, token_budget=1000)
    assert [tuple(part.ids_BT.shape) for part in packs] == [(1, 60), (3, 10), (1, 4)]


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(top_p=0.9), "top_p"),
        (Sampling(top_k=5), "top_k"),
        (Sampling(temperature=0.0), "temperature"),
    ],
)
def test_a_turn_not_sampled_plainly_is_context_only(sampling: Sampling, reason: str) -> None:
    turns = [
        priced([P], [A, A], [-1.0, -1.0], sampling=sampling),
        priced([P, A, A, T], [A], [-1.0], index=1),
    ]
    (row,) = rows_of(experience(1, turns, thumb=1))
    assert [span.unused for span in row.spans] == [reason, None]
    assert build([row]).tokens == 1


def test_rows_without_a_trained_token_are_refused_and_counted() -> None:
    good = rows_of(experience(1, [priced([P], [A], [-1.0])], thumb=1))
    idle = mark(rows_of(experience(2, [priced([P], [A], [-1.0])], thumb=1)), {("ep_000002", 0): "stale"})
    assert build([*good, *idle]).refused == 1
    with pytest.raises(NothingToTrain):
        build(idle)


def test_order_of_arrival_changes_nothing() -> None:
    rows = [
        row
        for n in range(4)
        for row in rows_of(experience(n, [priced([P], [A, n + 10], [-1.0, -1.0])], thumb=1))
    ]
    assert build(rows).target_N.tolist() == build(rows[::-1]).target_N.tolist()


def test_a_turn_longer_than_the_model_is_not_trained() -> None:
    (row,) = lay_out(experience(1, [priced([P] * 5, [A] * 5, [-1.0] * 5)], thumb=1), max_length=9)
    assert row.spans[0].unused == "too_long"
