"""The exact checker: what the right answer to a request is, and what is wrong with a given one.

Invariant: the truth is worked out from the request and the episode's id alone; nothing here is ever sent to
the product.
"""

import re
from dataclasses import dataclass
from typing import Literal

from deploy.simulation.world import Request
from tools.travel import Offer, forecast, offers

Fault = Literal["flight", "hotel", "total", "weather"]

# A name is one or more capitalised words, so it ends before a comma or a full stop.
OFFER = r"(\d+) ([A-Z][a-z]+(?: [A-Z][a-z]+)*)"
FLIGHT = re.compile(rf"\b[Ff]light {OFFER}")
HOTEL = re.compile(rf"\b[Hh]otel {OFFER}")
TOTAL = re.compile(r"\b[Tt]otal (\d+)")
WEATHER = re.compile(r"\b[Ww]eather (\d+ [a-z]+)")


@dataclass(frozen=True)
class Answer:
    """The parts of an answer; None = not asked, or not said."""

    flight: Offer | None = None
    hotel: Offer | None = None
    total: int | None = None
    weather: str | None = None

    def written(self) -> str:
        """`Flight 24 Delta, hotel 28 Hill. Total 136. Weather 21 rain.`"""
        parts = [f"flight {self.flight.price} {self.flight.name}"] if self.flight else []
        parts += [f"hotel {self.hotel.price} {self.hotel.name}"] if self.hotel else []
        said = [", ".join(parts)] if parts else []
        said += [f"total {self.total}"] if self.total is not None else []
        said += [f"weather {self.weather}"] if self.weather else []
        return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said)


def truth(request: Request, session: str) -> Answer:
    """The right answer in the episode `session`: the cheapest of each, and their sum."""
    flight = min(offers("flights", request.city, session)) if request.flight else None
    hotel = min(offers("hotels", request.city, session)) if request.hotel else None
    total = (flight.price if flight else 0) + (hotel.price * request.nights if hotel else 0)
    weather = forecast(request.city, session) if request.weather else None
    return Answer(flight, hotel, total if request.priced else None, weather)


def read(reply: str) -> Answer:
    """What a reply says. A part said twice in different ways is not said."""
    flight, hotel, total, weather = (_only(p, reply) for p in (FLIGHT, HOTEL, TOTAL, WEATHER))
    return Answer(
        Offer(int(flight[0]), flight[1]) if flight else None,
        Offer(int(hotel[0]), hotel[1]) if hotel else None,
        int(total[0]) if total else None,
        weather[0] if weather else None,
    )


def faults(reply: str, right: Answer) -> tuple[Fault, ...]:
    """The asked parts that a reply gets wrong or leaves out; () = right."""
    said = read(reply)
    wrong: list[Fault] = []
    if right.flight and said.flight != right.flight:
        wrong.append("flight")
    if right.hotel and said.hotel != right.hotel:
        wrong.append("hotel")
    if right.total is not None and said.total != right.total:
        wrong.append("total")
    if right.weather and said.weather != right.weather:
        wrong.append("weather")
    return tuple(wrong)


def _only(pattern: re.Pattern[str], reply: str) -> tuple[str, ...] | None:
    found = {match.groups() for match in pattern.finditer(reply)}
    return found.pop() if len(found) == 1 else None
