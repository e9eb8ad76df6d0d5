"""What users say about an answer, in words, and the short reply that it gets.

Invariant: a reaction is a message of its own, never mixed with the next request.
"""

import random
from collections.abc import Sequence
from typing import get_args

from deploy.simulation.travel import Fault

REACTS, CROSSED = 0.5, 0.05  # half of the users say something; one in twenty says the opposite
PATIENCE = 4  # messages a user sends in an episode, requests included: keeps dialogues within 400 tokens

THANKS = (
    "Thanks!",
    "Thank you.",
    "Great, thank you!",
    "Perfect, thanks.",
    "Good, that is right.",
    "That is what I need. Thanks.",
)
COMPLAINTS: dict[Fault, tuple[str, ...]] = {
    "flight": (
        "That is not the cheapest flight.",
        "The flight is wrong.",
        "No, there is a cheaper flight.",
    ),
    "hotel": (
        "That is not the cheapest hotel.",
        "The hotel is wrong.",
        "No, there is a cheaper hotel.",
    ),
    "total": (
        "The total is wrong.",
        "No, that is not the right total.",
        "The total is not right for my nights.",
    ),
    "weather": (
        "That is not the weather.",
        "The weather is wrong.",
        "No, I asked for the weather.",
    ),
}
TO_THANKS = ("You are welcome.", "My pleasure.")
TO_COMPLAINT = ("Sorry about that.", "I am sorry.")


def reaction(draw: random.Random, wrong: Sequence[Fault]) -> tuple[bool, str] | None:
    """(whether it complains, its words), or None for silence."""
    if draw.random() >= REACTS:
        return None
    complains = bool(wrong) != (draw.random() < CROSSED)
    if not complains:
        return False, draw.choice(THANKS)
    named = draw.choice(wrong) if wrong else draw.choice(get_args(Fault)[:3])
    return True, draw.choice(COMPLAINTS[named])


def courtesy(draw: random.Random, complained: bool) -> str:
    """The agent's short reply to a reaction."""
    return draw.choice(TO_COMPLAINT if complained else TO_THANKS)
