"""The demo's cross-check: the two stories agree when they do, and every kind of difference is found."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.demo.clients import Clients, mismatches, rating_counts, success_by_arm
from deploy.demo.facts import collect, episode_counts, request_counts, update_counts, version_rows
from feedback.schemas import EXPERIENCES, FEEDBACK, INTERACTIONS, Message
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
    assert request_counts(facts) == {"total": 3, "failed": 0, "mixed_version": 0}
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
    first: dict[str, Any] = {**told.episodes[0]["answers"][0], key: value}
    episodes = [{**told.episodes[0], "answers": [first]}, told.episodes[1]]

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


def test_an_amended_thumb_counts_once_and_a_withdrawn_one_not_at_all() -> None:
    amended = [*messages(), (FEEDBACK, "ep_1", rating(False, response="ep_1-r1", revision=2, op="update"))]
    withdrawn = [*messages(), (FEEDBACK, "ep_1", rating(False, response="ep_1-r1", revision=2, op="delete"))]

    assert rating_counts(clients(), collect(bus_of(amended)))["doubled"] == 0
    assert rating_counts(clients(), collect(bus_of(withdrawn)))["lost"] == 1


def test_a_reply_of_two_versions_is_mixed() -> None:
    both = interaction(5, turns=(turn(), turn(adapter_version=FIRST)))

    assert request_counts(collect(bus_of([*messages(), (INTERACTIONS, "ep_1", both)])))["mixed_version"] == 1
