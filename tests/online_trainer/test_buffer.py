"""Once, at the newest revision, never too old, with enough people (I9; design 13 Batch, Staleness, Raters)."""

from typing import Any

import pytest

from feedback.schemas import Experience
from feedback.training_section import BatchSettings, Staleness
from online_trainer.buffer import Age, Buffer, Line, stale_turns
from tests.online_trainer.tiny import BASE, experience, priced

SETTINGS = BatchSettings(min_episodes=3, max_episodes=4, min_rated=2, min_users=2)
STALE = Staleness(max_lag=4, max_update_lag=16, max_age_s=100)


def item(number: int, *, thumb: int | None = 1, version: str = BASE, **changes: Any) -> Experience:
    return experience(
        number, [priced([1], [2], [-1.0], version=version)], thumb=thumb, version=version, **changes
    )


def age(*, accepted: int = 0, now: int = 2000, versions: int = 0) -> Age:
    lines = {f"tiny-desk-{n:06d}": Line(at_update=n) for n in range(versions + 1)}
    return Age(now, accepted, lines)


def test_an_episode_is_given_once_at_its_newest_revision() -> None:
    buffer = Buffer()
    assert buffer.add(item(1, thumb=None))
    assert buffer.add(item(1, thumb=0, revision=2))
    buffer.add(item(1, thumb=1, revision=1))
    assert buffer.waiting["ep_000001"].thumb == 0
    buffer.settle(buffer.waiting["ep_000001"])
    assert not buffer.add(item(1, thumb=1, revision=3))
    assert buffer.waiting == {}


def test_nothing_is_taken_before_its_cut_off() -> None:
    buffer = Buffer()
    for number in range(4):
        buffer.add(item(number))
    assert buffer.ready(999, SETTINGS) is None
    taken = buffer.ready(1000, SETTINGS)
    assert taken is not None and len(taken) == 4


@pytest.mark.parametrize(
    ("thumbs", "raters"),
    [([1, 1], "ab"), ([1, None, None, None], "abcd"), ([1, 1, 1, None], "aaab")],
    ids=["too few episodes", "too few rated", "too few people who reacted"],
)
def test_too_little_is_not_a_batch(thumbs: list[int | None], raters: str) -> None:
    buffer = Buffer()
    for number, (thumb, rater) in enumerate(zip(thumbs, raters, strict=True)):
        buffer.add(item(number, thumb=thumb, rater=rater))
    assert buffer.ready(2000, SETTINGS) is None


def test_one_person_is_enough_in_single_user_mode() -> None:
    buffer = Buffer()
    for number in range(4):
        buffer.add(item(number, rater="me"))
    assert buffer.ready(2000, SETTINGS) is None
    assert buffer.ready(2000, SETTINGS.model_copy(update={"single_user": True})) is not None


def test_rated_episodes_go_first_where_the_newest_are_silent() -> None:
    buffer = Buffer()
    for number in range(8):
        buffer.add(item(number, thumb=None if number < 4 else 1))
    taken = buffer.ready(2000, SETTINGS)
    assert taken is not None and [e.thumb for e in taken] == [1, 1, 1, 1]


def test_known_outcomes_go_first_and_the_newest_of_them() -> None:
    buffer = Buffer()
    for number in range(8):
        buffer.add(item(number, thumb=None if number in (5, 7) else 1, cutoff_at=1000 + number))
    taken = buffer.ready(2000, SETTINGS)
    assert taken is not None and [e.cutoff_at for e in taken] == [1006, 1004, 1003, 1002]


def test_what_is_too_much_goes_untrained_and_is_counted() -> None:
    buffer = Buffer()
    for number in range(6):
        buffer.add(item(number, thumb=None if number == 5 else 1, cutoff_at=1000 + number))
    buffer.add(item(9, cutoff_at=9000))
    gone = buffer.sift(age(), STALE, at_most=3)
    assert [(e.episode_id, why) for e, why in gone] == [
        ("ep_000001", "backlog"),
        ("ep_000000", "backlog"),
        ("ep_000005", "backlog"),
    ]
    assert sorted(buffer.waiting) == ["ep_000002", "ep_000003", "ep_000004", "ep_000009"]


@pytest.mark.parametrize(
    ("changes", "now", "reason"),
    [
        ({"trainable": False, "reason": "top_p"}, 2000, "top_p"),
        ({"arm": "holdout"}, 2000, "holdout"),
        ({"flags": ("evaluation",)}, 2000, "evaluation"),
        ({}, 200_000, "stale_age"),
        ({"version": "tiny-desk-000009"}, 2000, "foreign_version"),
    ],
)
def test_what_can_never_be_trained_is_settled_with_its_reason(
    changes: dict[str, Any], now: int, reason: str
) -> None:
    buffer = Buffer()
    buffer.add(item(1, **changes))
    assert [why for _, why in buffer.sift(age(now=now), STALE, at_most=9)] == [reason]
    assert buffer.untrainable == {reason: 1}
    assert buffer.waiting == {}


def test_lag_counts_offered_versions_and_accepted_updates() -> None:
    assert age(versions=4).reason(BASE, 500, STALE) is None
    assert age(versions=5).reason(BASE, 500, STALE) == "stale_version"
    assert age(accepted=16).reason(BASE, 500, STALE) is None
    assert age(accepted=17).reason(BASE, 500, STALE) == "stale_updates"
    assert age(accepted=17, versions=1).reason("tiny-desk-000001", 500, STALE) is None


def test_versions_that_were_rejected_are_neither_trained_nor_counted() -> None:
    lines = {BASE: Line(0)} | {f"tiny-desk-{n:06d}": Line(n, rejected=True) for n in range(1, 9)}
    assert Age(2000, 0, lines).reason(BASE, 500, STALE) is None
    assert Age(2000, 0, lines).reason("tiny-desk-000003", 500, STALE) == "rejected_version"


def test_an_episode_of_two_versions_loses_only_its_stale_turns() -> None:
    mixed = experience(
        1,
        [
            priced([1], [2], [-1.0], version="tiny-desk-000007"),
            priced([1, 2, 3], [2], [-1.0], index=1),
        ],
        thumb=1,
    )
    assert stale_turns([mixed], age(), STALE) == {("ep_000001", 0): "foreign_version"}
    buffer = Buffer()
    buffer.add(mixed)
    assert buffer.sift(age(), STALE, at_most=9) == []


def test_a_withdrawn_episode_never_comes_back() -> None:
    buffer = Buffer()
    buffer.add(item(1))
    buffer.withdraw("ep_000001")
    buffer.forget(10**15)
    assert not buffer.add(item(1, revision=9))
