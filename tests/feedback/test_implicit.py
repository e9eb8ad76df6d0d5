"""Words are a rating only when they are about the answer; an ordinary next request is silence."""

import random

import pytest

from feedback.implicit import (
    MIN_PAIRS,
    Pair,
    follow_ups,
    learn,
    rules,
    trust,
    verdict,
    verdicts,
)
from tests.feedback.building import interaction


@pytest.mark.parametrize(
    "text",
    [
        "That's wrong.",
        "This is not correct",
        "No, I asked for two adults.",
        "You forgot the hotel",
        "that doesn't add up",
        "There is a cheaper train.",
        "You misunderstood me",
        "The date is incorrect, and the price isn't right.",
        "Not what I wanted.",
        "This answer is useless",
        "It still doesn't work",
        "Thanks, but that is the wrong city.",
    ],
)
def test_complaints(text: str) -> None:
    assert verdict(rules(text)) == -1


@pytest.mark.parametrize(
    "text",
    [
        "Thanks!",
        "thank you so much",
        "Perfect.",
        "Great, exactly what I needed!",
        "That's right, thanks",
        "Very helpful",
        "Well done",
        "Thank you! Now a hotel in Oslo, please.",
    ],
)
def test_thanks(text: str) -> None:
    assert verdict(rules(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        "Make it 4 nights.",
        "Actually, 5 nights instead",
        "No, make it Rome",
        "What about Paris?",
        "Is there a cheaper hotel?",
        "Find me a flight to Rome, thanks.",
        "And the weather there?",
        "I need a hotel in Lima for 2 nights",
        "Let us go to Oslo instead.",
        "What is wrong with my ticket?",
        "word " * 200,
    ],
)
def test_requests_changes_of_topic_and_small_talk_are_silence(text: str) -> None:
    assert verdict(rules(text)) == 0


def test_probabilities_near_a_half_are_silence() -> None:
    assert [verdict(p) for p in (0.0, 0.34, 0.36, 0.5, 0.64, 0.66, 1.0)] == [-1, -1, 0, 0, 0, 1, 1]


def test_a_follow_up_belongs_to_the_reply_it_answers() -> None:
    replies = [
        interaction(0, user_text="first"),
        interaction(1, user_text="second"),
        interaction(2, user_text="third", parent_response_id="ep_1-r0"),
    ]
    assert follow_ups(replies) == {"ep_1-r0": "second"}
    branched = [replies[0], replies[2]]
    assert follow_ups(branched) == {"ep_1-r0": "third"}


def test_what_follows_a_failed_request_is_about_the_reply_before_it() -> None:
    replies = [
        interaction(0),
        interaction(1, status="failed", turns=(), user_text=""),
        interaction(2, user_text="That is wrong."),
    ]
    assert follow_ups(replies) == {"ep_1-r0": "That is wrong."}


def test_silence_is_left_out_of_the_verdicts() -> None:
    assert verdicts({"a": "Thanks!", "b": "ok", "c": "That is wrong"}, rules) == {"a": 1, "c": -1}


@pytest.mark.parametrize(
    ("agreements", "pairs", "expected"),
    [(0, 0, 0.8), (49, 49, 0.8), (40, 50, 0.6), (50, 50, 1.0), (25, 50, 0.0), (10, 50, 0.0)],
)
def test_trust_is_twice_the_agreement_less_one_once_it_is_known(
    agreements: int, pairs: int, expected: float
) -> None:
    assert trust(agreements, pairs, start=0.8, needed=50) == pytest.approx(expected)


def spoken(count: int, *, good: list[str], bad: list[str], seed: int = 3) -> list[Pair]:
    """Thumbs with a tenth flipped, and what those users wrote next."""
    draw = random.Random(seed)
    pairs = []
    for number in range(count):
        happy = draw.random() < 0.5
        text = draw.choice(good if happy else bad) + f" {draw.choice(['', 'really', 'today', 'friend'])}"
        thumb = happy != (draw.random() < 0.1)
        pairs.append(
            Pair(
                response_id=f"r{number}",
                text=text,
                thumb=int(thumb),
                verdict=verdict(rules(text)),
                at=number,
            )
        )
    return pairs


def test_a_vocabulary_the_rules_do_not_know_is_learned() -> None:
    pairs = spoken(
        200, good=["chuffed to bits", "spot on mate", "ace stuff"], bad=["pants", "rubbish mate", "naff"]
    )
    assert {pair.verdict for pair in pairs} == {0}
    judge = learn(pairs)
    assert verdict(judge("spot on")) == 1
    assert verdict(judge("total rubbish")) == -1
    assert abs(judge("Make it 4 nights.") - 0.5) < 0.3


def test_with_little_or_one_sided_data_the_rules_stay() -> None:
    few = spoken(MIN_PAIRS - 1, good=["ace"], bad=["naff"])
    assert learn(few) is rules
    happy = [pair for pair in spoken(400, good=["ace"], bad=["naff"]) if pair.thumb][:MIN_PAIRS]
    assert learn(happy) is rules


def test_words_without_a_message_do_not_replace_the_rules() -> None:
    noise = [
        Pair(response_id=f"r{n}", text=f"And city {n}?", thumb=n % 2, verdict=0, at=n) for n in range(120)
    ]
    thanks = spoken(40, good=["Thanks!"], bad=["That is wrong."])
    assert learn([*noise, *thanks]) is rules
