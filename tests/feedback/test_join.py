"""An episode is the same whatever order, repeats and cuts its records came in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.join import Joined, JoinRules, Stamped, join
from feedback.metric_section import Metric
from tests.feedback.building import (
    IDLE_MS,
    compared,
    correction,
    episode_end,
    interaction,
    rating,
    withdrawal,
)

RULES = JoinRules(metrics={"user_rating": Metric(window=3600.0)}, idle_ms=IDLE_MS)
LATE = 10**12


def closed(*records: Stamped, now: int = LATE) -> Joined:
    joined = join(records, RULES, now=now)
    assert joined is not None
    return joined


def reply(number: int = 0, at: int | None = None, **changes: object) -> Stamped:
    return Stamped(1_000 * (number + 1) if at is None else at, interaction(number, **changes))


def thumb(value: bool = True, at: int = 2_000, **changes: object) -> Stamped:
    return Stamped(at, rating(value, **{"received_at": at} | changes))


def scores(joined: Joined) -> list[float]:
    return [each.score for each in joined.ratings]


def test_an_episode_closes_when_nothing_came_for_the_idle_time() -> None:
    records = [reply(0), reply(1)]
    assert join(records, RULES, now=2_000 + IDLE_MS - 1) is None
    assert closed(*records, now=2_000 + IDLE_MS).closed_at == 2_000 + IDLE_MS
    assert closed(*records).revision == 1


def test_an_end_closes_it_at_once_and_at_its_own_time() -> None:
    joined = closed(reply(0), Stamped(5_000, episode_end(5_000)), now=5_000)
    assert (joined.closed_at, joined.revision) == (5_000, 1)


def test_an_end_in_the_same_millisecond_as_the_reply_still_ends_it() -> None:
    joined = closed(reply(0, at=5_000), Stamped(5_000, episode_end(5_000)), now=5_000)
    assert (joined.closed_at, joined.revision) == (5_000, 1)


def test_a_rating_before_the_close_is_part_of_the_first_revision() -> None:
    joined = closed(reply(0), thumb(False))
    assert (joined.revision, scores(joined)) == (1, [0.0])


def test_each_effective_rating_after_the_close_is_a_revision() -> None:
    late = 1_000 + IDLE_MS + 5_000
    first = closed(reply(0), thumb(at=late))
    second = closed(reply(0), thumb(at=late), thumb(False, at=late + 1, revision=2, op="update"))
    assert (first.revision, scores(first)) == (2, [1.0])
    assert (second.revision, scores(second)) == (3, [0.0])
    assert first.closed_at == second.closed_at == 1_000 + IDLE_MS


def test_a_rating_that_came_before_its_episode_is_kept_and_joined() -> None:
    early = thumb(at=500)
    assert join([early], RULES, now=LATE) is None
    assert scores(closed(early, reply(0))) == [1.0]


def test_ratings_outside_the_window_do_not_count_on_either_side() -> None:
    window = 3_600_000
    reply_at = 10_000_000
    inside = [reply_at - window, reply_at + window]
    outside = [reply_at - window - 1, reply_at + window + 1]
    for at in inside:
        assert scores(closed(reply(0, at=reply_at), thumb(at=at))) == [1.0]
    for at in outside:
        joined = closed(reply(0, at=reply_at), thumb(at=at))
        assert (scores(joined), joined.revision) == ([], 1)


def test_up_down_up_counts_once_and_the_last_wins() -> None:
    clicks = [
        thumb(True, at=2_000, revision=1),
        thumb(False, at=2_001, revision=2, op="update"),
        thumb(True, at=2_002, revision=3, op="update"),
    ]
    assert scores(closed(reply(0), *clicks, *clicks)) == [1.0]
    assert scores(closed(reply(0), *clicks[:2])) == [0.0]


def test_the_same_rating_three_times_is_one() -> None:
    assert scores(closed(reply(0), thumb(), thumb(), thumb())) == [1.0]


def test_55_the_same_rating_on_the_next_utc_day_is_still_one() -> None:
    midnight = 200 * 86_400_000
    again = [
        thumb(at=midnight - 1),
        thumb(at=midnight + 1, id="fb_2"),
        thumb(False, at=midnight + 2, id="fb_3"),
    ]
    assert scores(closed(reply(0, at=midnight - 2), *again[:2])) == [1.0]
    assert scores(closed(reply(0, at=midnight - 2), *again)) == [0.0]


def test_within_one_id_the_revision_decides_even_against_the_time() -> None:
    newer = thumb(False, at=2_000, revision=2, op="update", received_at=1)
    older = thumb(True, at=2_500, revision=1, received_at=2)
    assert scores(closed(reply(0), newer, older)) == [0.0]


def test_a_retry_under_a_new_id_replaces_and_does_not_add() -> None:
    again = thumb(False, at=2_500, id="fb_2")
    assert scores(closed(reply(0), thumb(), again)) == [0.0]
    assert scores(closed(reply(0), again, thumb())) == [0.0]


def test_two_raters_count_twice() -> None:
    other = thumb(False, at=2_500, id="fb_2", rater="other-hash")
    assert sorted(scores(closed(reply(0), thumb(), other))) == [0.0, 1.0]


def test_a_deleted_rating_is_gone_and_that_is_a_revision_after_the_close() -> None:
    late = 1_000 + IDLE_MS + 5_000
    gone = thumb(at=late, revision=2, op="delete")
    joined = closed(reply(0), thumb(), gone)
    assert (scores(joined), joined.revision) == ([], 2)


def test_a_rating_of_an_unknown_reply_waits_for_it() -> None:
    early = thumb(response="ep_1-r1", at=1_500)
    assert scores(closed(reply(0), early)) == []
    assert scores(closed(reply(0), early, reply(1))) == [1.0]


def test_text_and_unknown_metrics_are_not_ratings() -> None:
    comment = thumb(name="comment", score=None)
    unknown = thumb(name="stars", id="fb_3")
    assert scores(closed(reply(0), comment, unknown)) == []


def test_zero_and_false_are_real_ratings() -> None:
    joined = closed(reply(0), thumb(False, score=0.0), thumb(value=-0.0, score=0.0, id="fb_2", rater="b"))
    assert scores(joined) == [0.0, 0.0]


def test_a_late_reply_reopens_the_episode_for_a_second_close() -> None:
    again = reply(1, at=1_000 + IDLE_MS + 7_000)
    assert join([reply(0), again], RULES, now=again.at + 1) is None
    joined = closed(reply(0), again)
    assert (joined.revision, joined.closed_at, len(joined.interactions)) == (2, again.at + IDLE_MS, 2)


def test_a_rating_while_it_is_open_again_is_no_revision_of_its_own() -> None:
    again = reply(1, at=1_000 + IDLE_MS + 7_000)
    joined = closed(reply(0), again, thumb(at=again.at + 1))
    assert (joined.revision, scores(joined)) == (2, [1.0])


def test_replies_are_in_the_order_of_the_conversation_not_of_arrival() -> None:
    joined = closed(reply(1, at=900), reply(0, at=950))
    assert [each.index for each in joined.interactions] == [0, 1]


def test_a_withdrawal_closes_for_good() -> None:
    joined = closed(reply(0), Stamped(1_500, withdrawal(1_500)), reply(1), now=1_600)
    assert joined.withdrawn
    assert join([Stamped(1_500, withdrawal(1_500))], RULES, now=LATE) is None


def chosen(joined: Joined) -> list[tuple[str, str, str]]:
    return [(each.chosen, each.rejected, each.rater) for each in joined.comparisons]


def compare(better: str, worse: str, at: int = 2_000, **changes: object) -> Stamped:
    return Stamped(at, compared(f"ep_1-r{better}", f"ep_1-r{worse}", **{"received_at": at} | changes))


def correct(text: str | None, at: int = 2_000, **changes: object) -> Stamped:
    return Stamped(at, correction(text, **{"received_at": at} | changes))


def test_a_choice_between_two_replies_is_joined_and_is_no_rating() -> None:
    joined = closed(reply(0), reply(1), compare("1", "0"))
    assert (chosen(joined), scores(joined)) == ([("ep_1-r1", "ep_1-r0", "user-hash")], [])


def test_a_choice_turned_round_replaces_and_another_pair_adds() -> None:
    replies = [reply(0), reply(1), reply(2)]
    turned = compare("0", "1", at=2_100, id="fb_2")
    assert chosen(closed(*replies, compare("1", "0"), turned)) == [("ep_1-r0", "ep_1-r1", "user-hash")]
    other = compare("0", "2", at=2_200, id="fb_3")
    third = compare("2", "1", at=2_300, id="fb_4")
    assert len(chosen(closed(*replies, compare("1", "0"), other, third))) == 3


def test_what_cannot_be_compared_or_was_taken_back_is_not_carried() -> None:
    replies = [reply(0), reply(1)]
    assert chosen(closed(*replies, compare("1", "0", same=False))) == []
    assert (
        chosen(closed(*replies, compare("1", "0"), compare("1", "0", at=3_000, revision=2, op="delete")))
        == []
    )


def test_of_each_person_the_newest_correction_of_a_reply_counts_whatever_its_name() -> None:
    first = correct("Total 100.")
    second = correct("Total 136.", at=2_500, id="fb_2", name="user_rating", value=False, score=0.0)
    other = correct("136 in all.", at=2_600, id="fb_3", rater="other-hash")
    joined = closed(reply(0), first, second, other)
    assert [(each.text, each.rater) for each in joined.corrections] == [
        ("Total 136.", "user-hash"),
        ("136 in all.", "other-hash"),
    ]
    assert scores(joined) == [0.0]
    gone = correct("Total 136.", at=2_700, id="fb_2", name="user_rating", revision=2, op="delete")
    assert [each.text for each in closed(reply(0), first, second, gone).corrections] == ["Total 100."]


def test_a_correction_after_the_close_is_a_revision_and_a_comment_is_not() -> None:
    late = 1_000 + IDLE_MS + 5_000
    assert closed(reply(0), correct("Total 136.", at=late)).revision == 2
    assert closed(reply(0), correct(None, at=late, name="comment", value="hm", comment="hm")).revision == 1


def test_after_the_window_what_was_said_stands_but_can_be_taken_back() -> None:
    """A change that came too late is on record and is not learned from (case 55)."""
    late = 1_000 + 3_600_000 + 1
    changed = thumb(False, at=late, revision=2, op="update")
    joined = closed(reply(0), thumb(True), changed)
    assert (scores(joined), joined.revision) == ([1.0], 1)
    taken_back = thumb(False, at=late + 1, revision=3, op="delete")
    assert scores(closed(reply(0), thumb(True), changed, taken_back)) == []


RECORDS = (
    reply(0),
    compare("1", "0", at=1_300, id="fb_5"),
    compare("0", "1", at=2_000 + IDLE_MS + 70, id="fb_5", revision=2, op="update"),
    correct("Total 136.", at=1_400, id="fb_6"),
    thumb(False, at=3_602_001, id="fb_2", response="ep_1-r1", revision=4, op="update"),
    reply(1),
    thumb(True, at=1_200),
    thumb(False, at=2_200, response="ep_1-r1", id="fb_2"),
    thumb(True, at=2_000 + IDLE_MS + 50, response="ep_1-r1", id="fb_2", revision=2, op="update"),
    reply(2, at=2_000 + IDLE_MS + 9_000),
    thumb(False, at=2_000 + 3 * IDLE_MS, response="ep_1-r2", id="fb_3"),
)
ONCE = closed(*RECORDS)


def test_the_undisturbed_run_is_what_we_think_it_is() -> None:
    # closed, changed thumb, choice turned round, closed again after the late reply, thumb on it
    assert ONCE.revision == 5
    assert scores(ONCE) == [1.0, 1.0, 0.0]
    assert chosen(ONCE) == [("ep_1-r0", "ep_1-r1", "user-hash")]
    assert [each.text for each in ONCE.corrections] == ["Total 136."]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(RECORDS), max_size=20).flatmap(lambda more: st.permutations([*RECORDS, *more]))
)
def test_order_and_repeats_change_nothing(records: list[Stamped]) -> None:
    assert join(records, RULES, now=LATE) == ONCE
