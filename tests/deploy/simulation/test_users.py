"""The thumbs of 2,000 episodes: half are never rated, a fifth of the thumbs lie, a fifth of the rated get a second one."""

import random

from deploy.simulation.ledger import Answer, EpisodeLine
from deploy.simulation.users import Habits, thumbs
from deploy.simulation.world import task

EPISODES = 2_000


def episode(seed: int) -> EpisodeLine:
    """As a desk that is right about every second answer leaves it."""
    requests, draw = task("train", seed).requests, random.Random(f"desk:{seed}")
    answers = [
        Answer(f"r{place}", f"ep_{seed}", "v", False, 0.1, draw.choice(((), ("total",))), request.priced)
        for place, request in enumerate(requests)
    ]
    success = not any(answer.wrong for answer in answers)
    return EpisodeLine("user", seed, seed, 0, len(requests), f"ep_{seed}", answers, success=success)


def test_thumbs_come_in_the_stated_shares() -> None:
    lines = [episode(seed) for seed in range(EPISODES)]
    given = [thumbs(line, random.Random(f"user:{line.index}"), Habits()) for line in lines]
    rated = [each for each in given if each]
    all_thumbs = [thumb for each in rated for thumb in each]

    assert sum(line.rated for line in lines) == len(rated)
    # Four standard errors around each share.
    assert abs(len(rated) / EPISODES - 0.5) < 0.045
    assert abs(sum(thumb.flipped for thumb in all_thumbs) / len(all_thumbs) - 0.2) < 0.05
    assert abs(sum(len(each) == 2 for each in rated) / len(rated) - 0.2) < 0.05


def test_the_one_thumb_is_on_the_last_quote_and_the_other_before_it() -> None:
    for seed in range(200):
        line = episode(seed)
        places = {answer.response_id: place for place, answer in enumerate(line.answers)}
        last_quote = max(place for place, answer in enumerate(line.answers) if answer.quotes_total)
        given = thumbs(line, random.Random(seed), Habits(rates=1.0, rates_earlier=1.0))
        assert [places[thumb.response_id] for thumb in given if thumb.last] == [last_quote]
        assert all(places[thumb.response_id] < last_quote for thumb in given if not thumb.last)
        assert len(given) == 1 + (last_quote > 0)


def test_without_any_quote_the_last_answer_is_rated() -> None:
    line = episode(1)
    for answer in line.answers:
        answer.quotes_total = False
    (thumb,) = thumbs(line, random.Random(1), Habits(rates=1.0, rates_earlier=0.0))

    assert thumb.response_id == line.answers[-1].response_id
