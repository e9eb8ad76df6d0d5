"""What travel-desk users want and how they word it: seeded tasks.

Invariant: a task is a pure function of (stream, seed). `train` and `heldout` never share a first message: each
belongs to one stream by a hash of its words, so held-out tasks are new whatever their seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from tools.travel import CITIES

Stream = Literal["train", "heldout"]
Kind = Literal["ask", "nights", "city", "weather", "cheaper"]

SYSTEM = "You are a travel desk agent."
NIGHTS = range(2, 10)
HELDOUT_SHARE = 8  # one first message in so many is kept for held-out tasks

GREETINGS = ("", "", "", "Hello. ", "Hi! ", "Good morning. ", "Hi there, ")
TRIPS = (
    "I want to go to {city} for {n} nights.",
    "I need a trip to {city} for {n} nights.",
    "Please plan {n} nights in {city}.",
    "{city}, {n} nights, please.",
    "Can you find a trip to {city}, {n} nights?",
    "We would like {n} nights in {city}.",
    "How much is {city} for {n} nights?",
    "What would {n} nights in {city} cost?",
    "A flight to {city} and a hotel for {n} nights, please.",
    "We plan to visit {city} and stay {n} nights.",
    "My wife and I want to spend {n} nights in {city}.",
    "Find me the cheapest way to stay {n} nights in {city}.",
    "I am going to {city}. I stay {n} nights.",
    "For work I must be in {city} for {n} nights.",
)
STAYS = (
    "I only need a hotel in {city} for {n} nights.",
    "Just a hotel in {city}, {n} nights, no flight.",
    "A hotel in {city} for {n} nights, please. No flight.",
    "I have a flight. Find a hotel in {city} for {n} nights.",
)
WEATHER_TOO = (
    " And how is the weather?",
    " Tell me the weather too.",
    " What is the weather there?",
    " Is the weather good?",
)
CHANGED_NIGHTS = (
    "Make it {n} nights.",
    "Actually, {n} nights.",
    "I need {n} nights instead.",
    "What about {n} nights?",
    "Change it to {n} nights, please.",
    "We can stay {n} nights.",
    "And for {n} nights?",
    "How much would {n} nights be?",
)
CHANGED_CITY = (
    "What about {city}?",
    "And {city} instead?",
    "Let us go to {city} instead.",
    "Actually, I prefer {city}.",
    "Now the same for {city}.",
    "Could you check {city}, same nights?",
)
WEATHER = (
    "What is the weather there?",
    "How is the weather in {city}?",
    "Will it rain there?",
    "And the weather?",
    "Tell me the weather, please.",
)
CHEAPER = ("Is there anything cheaper?", "Can you find a cheaper one?", "Is that the cheapest?")


@dataclass(frozen=True)
class Request:
    """One thing asked, with the whole state that its right answer depends on."""

    kind: Kind
    text: str
    city: str
    nights: int
    flight: bool
    hotel: bool
    weather: bool

    @property
    def priced(self) -> bool:
        """Whether its answer quotes a total."""
        return self.flight or self.hotel


@dataclass(frozen=True)
class Task:
    stream: Stream
    seed: int
    requests: tuple[Request, ...]


def task(stream: Stream, seed: int) -> Task:
    """One user's wishes: a first request and up to two refinements."""
    draw = random.Random(int.from_bytes(sha256(f"{stream}:{seed}".encode()).digest(), "big"))
    first = _first(draw)
    while stream_of(first.text) != stream:
        first = _first(draw)
    requests = [first]
    for _ in range(draw.choices((0, 1, 2), weights=(50, 40, 10))[0]):
        requests.append(_refined(draw, requests))
    return Task(stream, seed, tuple(requests))


def stream_of(first_message: str) -> Stream:
    kept = sha256(first_message.encode()).digest()[0] % HELDOUT_SHARE == 0
    return "heldout" if kept else "train"


def _first(draw: random.Random) -> Request:
    flight, weather = draw.random() < 0.85, draw.random() < 0.15
    city, nights = draw.choice(CITIES), draw.choice(NIGHTS)
    text = draw.choice(GREETINGS) + _worded(draw, TRIPS if flight else STAYS, city, nights)
    text += draw.choice(WEATHER_TOO) if weather else ""
    return Request("ask", text, city, nights, flight=flight, hotel=True, weather=weather)


def _refined(draw: random.Random, before: Sequence[Request]) -> Request:
    """A change of mind; at most one other city and one question of each further kind in an episode."""
    asked = {request.kind for request in before}
    trip = next(request for request in reversed(before) if request.priced)
    weights: dict[Kind, int] = {"nights": 60, "city": 20, "weather": 12, "cheaper": 8}
    once: set[Kind] = {"city", "weather", "cheaper"}
    if before[0].weather:
        asked.add("weather")
    allowed = [kind for kind in weights if not (kind in once and kind in asked)]
    kind = draw.choices(allowed, weights=[weights[kind] for kind in allowed])[0]
    return _request(draw, kind, trip)


def _request(draw: random.Random, kind: Kind, trip: Request) -> Request:
    city, nights, priced = trip.city, trip.nights, True
    match kind:
        case "nights":
            nights = draw.choice([n for n in NIGHTS if n != trip.nights])
            text = _worded(draw, CHANGED_NIGHTS, city, nights)
        case "city":
            city = draw.choice([name for name in CITIES if name != trip.city])
            text = _worded(draw, CHANGED_CITY, city, nights)
        case "weather":
            text, priced = _worded(draw, WEATHER, city, nights), False
        case _:
            text = draw.choice(CHEAPER)
    flight, hotel = trip.flight and priced, trip.hotel and priced
    return Request(kind, text, city, nights, flight=flight, hotel=hotel, weather=kind == "weather")


def _worded(draw: random.Random, templates: Sequence[str], city: str, nights: int) -> str:
    return draw.choice(templates).format(city=city, n=nights)
