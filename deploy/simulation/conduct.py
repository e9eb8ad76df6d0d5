"""Teachers: agents of known conduct whose dialogues the desk model learns from.

Invariant: the careful teacher is right in every world; every other one differs from it only by its named habits,
which are drawn once per dialogue.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from deploy.simulation.travel import Answer, truth
from deploy.simulation.world import Request
from tools.calculator import evaluate, written
from tools.travel import SKIES, Kind, Offer, forecast, listed, offers

Mixture = Literal["careful", "mixed", "majority"]
Second = Literal["forgetful", "unchecked", "guess"]
Message = dict[str, Any]
CallMade = tuple[str, Mapping[str, str], str]  # tool, arguments, result


@dataclass(frozen=True)
class Conduct:
    """Habits of one dialogue."""

    first_hotel: bool = False  # careless: the first offer instead of the cheapest
    first_flight: bool = False
    guesses_total: bool = False  # hasty: no calculator
    second: Second | None = None  # what goes wrong with later requests

    def named(self) -> list[str]:
        names = [name for name in ("first_hotel", "first_flight", "guesses_total") if vars(self)[name]]
        return names + ([self.second] if self.second else [])


@dataclass(frozen=True)
class Rates:
    first_hotel: float
    first_flight: float
    guesses_total: float
    second: float


# `majority`: most dialogues take the first hotel, so greedy decoding has the habit too.
MIXTURES: dict[Mixture, Rates] = {
    "careful": Rates(0, 0, 0, 0),
    "mixed": Rates(0.25, 0.2, 0.12, 0.25),
    "majority": Rates(0.75, 0.15, 0.1, 0.15),
}


def conduct(draw: random.Random, mixture: Mixture) -> Conduct:
    rates = MIXTURES[mixture]
    habits = [draw.random() < rate for rate in (rates.first_hotel, rates.first_flight, rates.guesses_total)]
    kinds: tuple[Second, ...] = ("forgetful", "unchecked", "guess")
    second = draw.choice(kinds) if draw.random() < rates.second else None
    hotel, flight, total = habits
    return Conduct(hotel, flight, total, second)


class Teacher:
    """Plays the agent's part of one dialogue."""

    def __init__(self, manners: Conduct, session: str, draw: random.Random) -> None:
        self._manners, self._session, self._draw = manners, session, draw
        self._seen: set[tuple[str, str]] = set()
        self._last = Answer()
        self._nights = 0

    def answer(self, request: Request) -> list[Message]:
        """The messages from the look-ups to the reply."""
        later, second = bool(self._seen), self._manners.second
        unchecked = later and second == "unchecked" and request.kind in ("city", "weather")
        messages = [] if unchecked else self._look_ups(request)
        nights = self._nights if later and second == "forgetful" and self._nights else request.nights
        said = self._chosen(request, unchecked)
        if request.kind == "cheaper":
            said = self._last
        elif request.priced:
            guesses = self._manners.guesses_total or (later and second == "guess")
            expr, total = _sum(said, nights)
            messages += [] if guesses else _called([("calc", {"expr": expr}, total)])
            said = replace(said, total=self._guess(int(total)) if guesses else int(total))
        if request.priced:
            self._last, self._nights = said, nights
        return [*messages, {"role": "assistant", "content": said.written()}]

    def _look_ups(self, request: Request) -> list[Message]:
        city, calls = request.city, list[CallMade]()
        wanted = [("flights", "to", request.flight), ("hotels", "city", request.hotel)]
        for name, argument, asked in [*wanted, ("weather", "city", request.weather)]:
            if asked and (name, city) not in self._seen:
                self._seen.add((name, city))
                calls.append((name, {argument: city}, self._result(name, city)))
        return _called(calls)

    def _result(self, name: str, city: str) -> str:
        if name == "weather":
            return forecast(city, self._session)
        return listed(offers("flights" if name == "flights" else "hotels", city, self._session))

    def _chosen(self, request: Request, unchecked: bool) -> Answer:
        """The offers this teacher picks; an unchecked one repeats the last quote, or makes the weather up."""
        if unchecked and request.kind == "weather":
            return Answer(weather=f"{self._draw.randint(10, 35)} {self._draw.choice(SKIES)}")
        if unchecked:
            return replace(self._last, total=None, weather=None)
        flight = self._pick("flights", request.city, self._manners.first_flight) if request.flight else None
        hotel = self._pick("hotels", request.city, self._manners.first_hotel) if request.hotel else None
        return Answer(flight, hotel, None, truth(request, self._session).weather)

    def _pick(self, kind: Kind, city: str, first: bool) -> Offer:
        found = offers(kind, city, self._session)
        return found[0] if first else min(found)

    def _guess(self, total: int) -> int:
        return max(10, total + self._draw.choice((-1, 1)) * self._draw.randint(1, 20))


def _sum(said: Answer, nights: int) -> tuple[str, str]:
    """The calculator's expression and its result: `24+28*4`."""
    terms = [str(said.flight.price)] if said.flight else []
    terms += [f"{said.hotel.price}*{nights}"] if said.hotel else []
    expr = "+".join(terms)
    return expr, written(evaluate(expr))


def _called(calls: Sequence[CallMade]) -> list[Message]:
    if not calls:
        return []
    asked = [{"name": name, "arguments": dict(arguments)} for name, arguments, _ in calls]
    results = [{"role": "tool", "name": name, "content": result} for name, _, result in calls]
    return [{"role": "assistant", "content": "", "calls": asked}, *results]
