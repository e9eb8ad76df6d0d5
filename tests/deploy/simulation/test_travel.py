"""The checker, by hand."""

import pytest

from deploy.simulation.travel import Answer, faults, read, truth
from deploy.simulation.world import Request
from tools.travel import Offer, forecast, offers

RIGHT = Answer(Offer(24, "Delta"), Offer(28, "Old Mill"), 136, None)
ASK = Request("ask", "Lima, 4 nights", "Lima", 4, flight=True, hotel=True, weather=False)


def test_the_truth_is_the_cheapest_of_each_and_their_sum() -> None:
    flight, hotel = min(offers("flights", "Lima", "s")), min(offers("hotels", "Lima", "s"))
    assert truth(ASK, "s") == Answer(flight, hotel, flight.price + 4 * hotel.price, None)
    stay = Request("ask", "", "Lima", 4, flight=False, hotel=True, weather=True)
    assert truth(stay, "s") == Answer(None, hotel, 4 * hotel.price, forecast("Lima", "s"))
    weather = Request("weather", "", "Lima", 4, flight=False, hotel=False, weather=True)
    assert truth(weather, "s") == Answer(weather=forecast("Lima", "s"))


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        ("Flight 24 Delta, hotel 28 Old Mill. Total 136.", ()),
        ("Sure! The flight 24 Delta and the hotel 28 Old Mill: total 136", ()),
        ("Flight 24 Delta, hotel 28 Old Mill. Total 136. Weather 21 rain.", ()),
        ("Flight 24 Swift, hotel 28 Old Mill. Total 136.", ("flight",)),
        ("Flight 25 Delta, hotel 28 Old Mill. Total 136.", ("flight",)),
        ("Flight 24 Delta, hotel 28 Old. Total 136.", ("hotel",)),
        ("Flight 24 Delta, hotel 28 Old Mill House. Total 136.", ("hotel",)),
        ("Flight 24 Delta, hotel 28 Old Mill. Total 1360.", ("total",)),
        ("Flight 24 Delta, hotel 28 Old Mill.", ("total",)),
        ("Flight 24 Delta, hotel 28 Old Mill. Total 136. Total 137.", ("total",)),
        ("Flight 24 Delta, flight 30 Swift, hotel 28 Old Mill. Total 136.", ("flight",)),
        ("", ("flight", "hotel", "total")),
        ("Sorry about that.", ("flight", "hotel", "total")),
    ],
)
def test_what_is_wrong_is_named(reply: str, wrong: tuple[str, ...]) -> None:
    assert faults(reply, RIGHT) == wrong


def test_the_weather_counts_when_asked() -> None:
    asked = Answer(weather="21 rain")
    assert faults("Weather 21 rain.", asked) == ()
    for reply in ("Weather 22 rain.", "Weather 21 snow.", "Flight 24 Delta. Total 24.", "It rains."):
        assert faults(reply, asked) == ("weather",)


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        Answer(hotel=Offer(28, "Rose"), total=56),
        Answer(weather="12 fog"),
        Answer(Offer(9, "Blue Jet"), Offer(98, "Sea View"), 107, "30 clear"),
    ],
)
def test_what_is_written_reads_back(answer: Answer) -> None:
    assert read(answer.written()) == answer


def test_the_written_form_is_the_wire_format() -> None:
    assert (
        Answer(Offer(24, "Delta"), Offer(28, "Hill"), 136).written()
        == "Flight 24 Delta, hotel 28 Hill. Total 136."
    )
