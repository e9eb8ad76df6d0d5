"""Travel look-ups over a made-up world.

Invariant: what a look-up says is a pure function of (kind, city, session). Every episode has its own quotes,
so nothing can be memorised, and whoever knows the episode's id can work out the truth.
"""

import random
from hashlib import sha256
from itertools import pairwise
from typing import Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

Kind = Literal["flights", "hotels"]


def _names(listed: str) -> tuple[str, ...]:
    """Names separated by blanks; an underscore stands for a blank inside one."""
    return tuple(name.replace("_", " ") for name in listed.split())


CITIES = _names(
    "Lima Oslo Rome Paris Tokyo Cairo Delhi Berlin Madrid Vienna Prague Dublin Athens Lisbon Boston Chicago Sydney "
    "Toronto Moscow London Milan Seoul Havana Bogota Nairobi Geneva Zurich Naples Dallas Denver Miami Warsaw "
    "Seville Kyoto Venice Porto New_York Cape_Town Hong_Kong San_Diego"
)
AIRLINES = _names(
    "Delta Falcon Comet Polar Orion Condor Atlas Swift Aurora Meteor Pacific Eagle Phoenix Summit Blue_Jet "
    "Red_Kite Sky_One North_Star"
)
HOTELS = _names(
    "Rose Hill Plaza Garden Harbor Crown Lotus Palm Cedar Villa Central Lion Station River Old_Mill Grand_Park "
    "Sea_View White_House"
)
SKIES = ("sunny", "rain", "snow", "windy", "cloudy", "storm", "fog", "clear")
LOWEST, HIGHEST, GAP = 11, 98, 4  # prices have two digits and differ visibly
OFFERS = 2


class Offer(NamedTuple):
    price: int
    name: str


def offers(kind: Kind, city: str, session: str) -> tuple[Offer, ...]:
    """What this session is quoted, in the order shown."""
    draw = _draw(kind, city, session)
    names = draw.sample({"flights": AIRLINES, "hotels": HOTELS}[kind], OFFERS)
    while True:
        prices = [draw.randint(LOWEST, HIGHEST) for _ in names]
        ordered = sorted(prices)
        if all(high - low >= GAP for low, high in pairwise(ordered)):
            return tuple(Offer(price, name) for price, name in zip(prices, names, strict=True))


def forecast(city: str, session: str) -> str:
    """Degrees before sky, as prices come before names."""
    draw = _draw("weather", city, session)
    return f"{draw.randint(10, 35)} {draw.choice(SKIES)}"


def listed(found: tuple[Offer, ...]) -> str:
    """The wire format: `43 Rose; 28 Hill`."""
    return "; ".join(f"{offer.price} {offer.name}" for offer in found)


@tool
def flights(to: str, config: RunnableConfig) -> str:
    """Flights to a city: price and airline of each."""
    return _look_up("flights", to, config)


@tool
def hotels(city: str, config: RunnableConfig) -> str:
    """Hotels in a city: price per night and name of each."""
    return _look_up("hotels", city, config)


@tool
def weather(city: str, config: RunnableConfig) -> str:
    """The weather in a city: degrees and sky."""
    known = _known(city)
    return forecast(known, _session(config)) if known else _unknown(city)


def _look_up(kind: Kind, city: str, config: RunnableConfig) -> str:
    known = _known(city)
    return listed(offers(kind, known, _session(config))) if known else _unknown(city)


def _known(city: str) -> str | None:
    wanted = city.strip().casefold()
    return next((name for name in CITIES if name.casefold() == wanted), None)


def _unknown(city: str) -> str:
    return f"unknown city {city.strip()[:40]}"


def _session(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("episode_id", ""))


def _draw(kind: str, city: str, session: str) -> random.Random:
    seed = sha256("\n".join((kind, city, session)).encode()).digest()
    return random.Random(int.from_bytes(seed, "big"))
