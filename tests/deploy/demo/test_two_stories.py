"""The demo's cross-check: the two stories agree when they do, and every kind of difference is found."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.demo.clients import Clients, failed_requests, mismatches, rating_counts, success_by_arm
from deploy.demo.facts import (
    collect,
    episode_counts,
    request_counts,
    trained_twice,
    update_counts,
    version_rows,
)
from feedback.schemas import CREDITS, EXPERIENCES, FEEDBACK, INTERACTIONS, Credit, Message
from tests.deploy.demo.story import FIRST, bus_of, clients, experience, messages
from tests.feedback.building import interaction, rating, turn


def without(topic: str, number: int) -> list[tuple[str, str, Message]]:
    """The product's story with the `number`-th message of a topic lost."""
    places = [place for place, (name, _, _) in enumerate(messages()) if name == topic]
    return [sent for place, sent in enumerate(messages()) if place != places[number]]


def test_two_equal_stories_agree_and_are_counted() -> None:
    facts = collect(bus_of(messages()))

    assert mismatches(clients(), facts) == []
    assert rating_counts(clients(), facts) == {"sent": 2, "joined": 2, "lost": 0, "doubled": 0}
    assert request_counts(facts) == {"total": 3, "mixed_version": 0}
    assert failed_requests(clients(), facts) == 0
    assert trained_twice(facts) == []
    assert update_counts(facts) == {"accepted": 1, "shrunk": 0, "refused": 0}
    assert episode_counts(facts) == {
        "total": 2,
        "rated": 2,
        "reacted": 0,
        "silent": 0,
        "trained": 1,
        "untrainable": {"holdout": 1},
    }
    assert [(row["version"], row["verdict"], row["k3_old"]) for row in version_rows(facts)] == [
        (FIRST, "promoted", 0.0004)
    ]
    assert success_by_arm(clients(), facts) == {"champion": [(2_000, 1.0)], "holdout": [(4_000, 1.0)]}


def test_repeats_of_an_at_least_once_stream_change_nothing() -> None:
    assert collect(bus_of([*messages(), *messages()])) == collect(bus_of(messages()))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (without(INTERACTIONS, 1), "nothing was recorded"),
        (without(FEEDBACK, 0), "not on the bus"),
        (without(EXPERIENCES, 1), "became no experience"),
        ([*messages(), (INTERACTIONS, "ep_1", interaction(0, latency_ms=7.0))], "with other content"),
    ],
)
def test_what_the_product_lost_or_changed_is_found(sent: list[tuple[str, str, Message]], said: str) -> None:
    found = mismatches(clients(), collect(bus_of(sent)))

    assert len(found) == 1 and said in found[0]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("episode_id", "ep_9", "another episode"),
        ("adapter_version", FIRST, "another version"),
    ],
)
def test_a_reply_that_the_client_was_told_otherwise_about_is_found(key: str, value: str, said: str) -> None:
    told = clients()
    first, second = told.episodes[0]["answers"]
    answers: list[dict[str, Any]] = [{**first, key: value}, second]
    episodes = [{**told.episodes[0], "answers": answers}, told.episodes[1]]

    found = mismatches(replace(told, episodes=episodes), collect(bus_of(messages())))

    assert len(found) == 1 and said in found[0]


def test_a_thumb_that_arrived_with_the_other_sign_is_found() -> None:
    told: Clients = clients()
    ratings = [{**told.ratings[0], "value": False}, told.ratings[1]]

    found = mismatches(replace(told, ratings=ratings), collect(bus_of(messages())))

    assert len(found) == 1 and "another target or value" in found[0]


def test_a_thumb_without_an_experience_is_lost_and_one_in_two_is_doubled() -> None:
    unjoined = [m for m in messages() if m[0] != EXPERIENCES] + [
        (EXPERIENCES, "ep_1", experience("ep_1", ratings=0)),
        (EXPERIENCES, "ep_2", experience("ep_2")),
    ]
    twice = [*messages(), (EXPERIENCES, "ep_1", experience("ep_1", revision=2, ratings=2))]

    assert rating_counts(clients(), collect(bus_of(unjoined)))["lost"] == 1
    assert rating_counts(clients(), collect(bus_of(twice)))["doubled"] == 1


def test_one_lost_and_one_doubled_do_not_make_up_for_each_other() -> None:
    swapped = [
        *messages(),
        (EXPERIENCES, "ep_1", experience("ep_1", revision=2, ratings=2)),
        (EXPERIENCES, "ep_2", experience("ep_2", revision=2, ratings=0)),
    ]

    assert rating_counts(clients(), collect(bus_of(swapped))) == {
        "sent": 2,
        "joined": 2,
        "lost": 1,
        "doubled": 1,
    }


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ((INTERACTIONS, "ep_1", interaction(7)), "ep_1-r7: recorded, no client was given this reply"),
        ((EXPERIENCES, "ep_9", experience("ep_9", ratings=0)), "ep_9: an experience of no client's episode"),
        (
            (FEEDBACK, "ep_1", rating(True, response="ep_1-r0", id="fb_9")),
            "fb_9: feedback that no client was told is stored",
        ),
    ],
)
def test_what_no_client_did_is_found(sent: tuple[str, str, Message], said: str) -> None:
    assert mismatches(clients(), collect(bus_of([*messages(), sent]))) == [said]


def test_a_reply_that_its_client_lost_is_a_failure_and_no_second_mismatch() -> None:
    told = clients()
    cut = {**told.episodes[0], "failure": "ReadTimeout: ", "answers": told.episodes[0]["answers"][:1]}
    told = replace(told, episodes=[cut, told.episodes[1]])

    facts = collect(bus_of(messages()))
    assert mismatches(told, facts) == []
    assert failed_requests(told, facts) == 1


@pytest.mark.parametrize(
    ("seen_by_client", "count"), [("ep_1", 1), ("ep_2", 2), ("", 2)], ids=["same", "other", "unnamed"]
)
def test_failures_of_either_side_are_counted_once_each(seen_by_client: str, count: int) -> None:
    """Product and client may each have seen a failure that the other has not."""
    failed = interaction(2, status="failed", turns=())
    lines = [
        {**line, "failure": "InternalServerError: "} if line["episode_id"] == seen_by_client else line
        for line in clients().episodes
    ]
    if not seen_by_client:
        lines.append(
            {**lines[0], "episode_id": "", "answers": [], "success": None, "failure": "ConnectError"}
        )
    told = replace(clients(), episodes=lines)

    assert failed_requests(told, collect(bus_of([*messages(), (INTERACTIONS, "ep_1", failed)]))) == count


def test_a_first_request_that_failed_on_both_sides_is_one_failure() -> None:
    failed = interaction(0, episode="ep_8", status="failed", turns=())
    line = {**clients().episodes[0], "episode_id": "", "answers": [], "success": None, "failure": "503"}
    told = replace(clients(), episodes=[*clients().episodes, line])

    assert failed_requests(told, collect(bus_of([*messages(), (INTERACTIONS, "ep_8", failed)]))) == 1


def test_an_episode_trained_in_two_updates_is_found_and_one_refused_first_is_not() -> None:
    (again,) = (message for topic, _, message in messages() if topic == CREDITS)
    assert isinstance(again, Credit)
    twice = (CREDITS, "ep_1", again.model_copy(update={"update_id": "up_2"}))
    unused = tuple(turn.model_copy(update={"unused": "refused"}) for turn in again.turns)
    refused = (CREDITS, "ep_1", again.model_copy(update={"update_id": "up_0", "turns": unused}))

    assert trained_twice(collect(bus_of([*messages(), twice]))) == ["ep_1: trained in 2 updates"]
    assert trained_twice(collect(bus_of([*messages(), refused]))) == []


def test_an_amended_thumb_counts_once_and_a_withdrawn_one_not_at_all() -> None:
    amended = [*messages(), (FEEDBACK, "ep_1", rating(False, response="ep_1-r1", revision=2, op="update"))]
    withdrawn = [*messages(), (FEEDBACK, "ep_1", rating(False, response="ep_1-r1", revision=2, op="delete"))]

    assert rating_counts(clients(), collect(bus_of(amended)))["doubled"] == 0
    assert rating_counts(clients(), collect(bus_of(withdrawn)))["lost"] == 1


def test_a_reply_of_two_versions_is_mixed() -> None:
    both = interaction(5, turns=(turn(), turn(adapter_version=FIRST)))

    assert request_counts(collect(bus_of([*messages(), (INTERACTIONS, "ep_1", both)])))["mixed_version"] == 1
