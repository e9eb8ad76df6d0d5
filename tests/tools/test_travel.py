"""The made-up world: every session has its own quotes, and they can be worked out again."""

import re
from collections import Counter

import pytest

from tools.travel import AIRLINES, CITIES, HOTELS, flights, forecast, hotels, listed, offers, weather

CONFIG = {"configurable": {"episode_id": "ep_1"}}


def test_offers_are_a_function_of_the_session() -> None:
    assert offers("hotels", "Lima", "a") == offers("hotels", "Lima", "a")
    assert len({offers("hotels", "Lima", str(session)) for session in range(200)}) > 190
    assert offers("hotels", "Lima", "a") != offers("hotels", "Oslo", "a")
    # Pinned: a checker of another version must come to the same truth.
    assert listed(offers("flights", "Lima", "ep_1")) == flights.invoke({"to": "Lima"}, CONFIG)
    assert listed(offers("hotels", "Lima", "pinned")) == "68 Cedar; 53 Plaza"


def test_either_place_is_the_cheapest_half_of_the_time() -> None:
    first = Counter(
        found[0] == min(found) for found in (offers("hotels", "Rome", str(n)) for n in range(2000))
    )
    assert 900 < first[True] < 1100


def test_the_wire_format_is_short_and_price_comes_first() -> None:
    for session in map(str, range(50)):
        for kind, names in (("flights", AIRLINES), ("hotels", HOTELS)):
            found = offers(kind, "Lima", session)  # type: ignore[arg-type]
            assert re.fullmatch(r"\d\d [A-Z][\w ]+; \d\d [A-Z][\w ]+", listed(found))
            assert {offer.name for offer in found} <= set(names)
            assert abs(found[0].price - found[1].price) >= 4


@pytest.mark.parametrize("city", ["lima", " Lima ", "LIMA"])
def test_a_city_is_known_however_it_is_written(city: str) -> None:
    assert hotels.invoke({"city": city}, CONFIG) == hotels.invoke({"city": "Lima"}, CONFIG)
    assert weather.invoke({"city": city}, CONFIG) == forecast("Lima", "ep_1")


def test_an_unknown_city_says_so() -> None:
    for one, argument in ((flights, "to"), (hotels, "city"), (weather, "city")):
        assert one.invoke({argument: "Atlantis"}, CONFIG) == "unknown city Atlantis"
    assert len(hotels.invoke({"city": "x" * 9000}, CONFIG)) < 60


def test_the_world_is_wide_and_its_names_do_not_collide() -> None:
    assert len(set(CITIES)) >= 30 and len(set(AIRLINES)) >= 16 and len(set(HOTELS)) >= 16
    assert not set(AIRLINES) & set(HOTELS) and not set(CITIES) & {*AIRLINES, *HOTELS}


def test_tools_need_no_session() -> None:
    assert flights.invoke({"to": "Lima"}) == listed(offers("flights", "Lima", ""))
