"""A signal becomes one number, once, at the right turn."""

import pytest

from feedback.agent_file import Penalties, Rewards
from feedback.join import Joined, Rating
from feedback.people import nobody
from feedback.reward import PriceRules, Trust, price, progress, soft_overlong, tool_penalty
from feedback.schemas import (
    Comparison,
    Correction,
    Experience,
    Interaction,
    OutcomeSource,
    Sampling,
    ToolCall,
    ToolOutcome,
)
from tests.feedback.building import call_turn, interaction, turn, withdrawal

RULES = PriceRules(rewards=Rewards(turn_budget=8), gamma=0.99, grace_ms=500)
TRUST = Trust(rating=0.7, implicit=0.3)
LOOKUP = call_turn(ToolCall(id="call_1", name="flights", arguments="Rome"))


def joined(*interactions: Interaction, ratings: tuple[Rating, ...] = (), **changes: object) -> Joined:
    fields: dict[str, object] = {
        "episode_id": "ep_1",
        "interactions": interactions,
        "ratings": ratings,
        "keys": tuple(f"i/{each.response_id}" for each in interactions),
        "revision": 1,
        "closed_at": 20_000,
        "known_at": 20_000,
    }
    return Joined(**(fields | changes))  # type: ignore[arg-type]


def thumb(score: float, number: int | None = 0, call: str | None = None, rater: str = "a") -> Rating:
    response = None if number is None else f"ep_1-r{number}"
    return Rating(response, call, "user_rating", score, rater, 5_000)


def priced(
    *interactions: Interaction, ratings: tuple[Rating, ...] = (), verdicts: dict[str, int] | None = None
) -> Experience:
    return price(joined(*interactions, ratings=ratings), verdicts or {}, trust=TRUST, rules=RULES)


def signals(experience: Experience) -> list[tuple[float | None, float]]:
    return [(each.channels.rating, each.channels.tau) for each in experience.turns]


def test_the_last_thumb_is_the_outcome_and_an_earlier_one_is_that_turns_rating() -> None:
    experience = priced(interaction(0), interaction(1), ratings=(thumb(0.0, 0), thumb(1.0, 1)))
    assert signals(experience) == [(-1.0, 0.7), (None, 0.0)]
    assert (experience.outcome, experience.outcome_reward, experience.outcome_turn) == (1, 1.0, 1)
    assert (experience.thumb, experience.outcome_source, experience.ratings) == (1, OutcomeSource.THUMB, 2)


def test_comparisons_and_corrections_are_carried_and_price_nothing() -> None:
    said = Comparison(
        chosen="ep_1-r1", rejected="ep_1-r0", chosen_episode="ep_1", rejected_episode="ep_1", rater="a"
    )
    better = Correction(response_id="ep_1-r0", text="Total 136.", rater="a")
    known = joined(interaction(0), interaction(1), comparisons=(said,), corrections=(better,))
    experience = Experience.from_bytes(price(known, {}, trust=TRUST, rules=RULES).to_bytes())
    assert (experience.comparisons, experience.corrections) == ((said,), (better,))
    assert (experience.outcome, experience.ratings, signals(experience)) == (None, 0, [(None, 0.0)] * 2)


def test_a_thumbs_down_is_minus_one() -> None:
    experience = priced(interaction(0), ratings=(thumb(0.0),))
    assert (experience.outcome, experience.outcome_reward) == (0, -1.0)


def test_a_courtesy_after_the_rated_answer_does_not_move_the_outcome() -> None:
    first = interaction(0, turns=(LOOKUP, turn("Total 136.")))
    courtesy = interaction(1, turns=(turn("You are welcome."),), user_text="Thanks!")
    experience = priced(first, courtesy, ratings=(thumb(1.0, 0),), verdicts={"ep_1-r0": 1})
    assert (experience.outcome_turn, experience.outcome_reward) == (1, 1.0)
    assert signals(experience) == [(None, 0.0)] * 3


def test_without_thumbs_the_last_judged_answer_is_the_outcome_at_the_trust_in_words() -> None:
    experience = priced(
        interaction(0), interaction(1), interaction(2), verdicts={"ep_1-r0": 1, "ep_1-r1": -1}
    )
    assert (experience.outcome, experience.outcome_reward, experience.outcome_turn) == (0, -0.3, 1)
    assert experience.outcome_source is OutcomeSource.IMPLICIT
    assert experience.thumb is None
    assert signals(experience) == [(1.0, 0.3), (None, 0.0), (None, 0.0)]


def test_words_about_an_answer_with_a_thumb_are_not_counted_as_well() -> None:
    experience = priced(interaction(0), interaction(1), ratings=(thumb(0.0, 0),), verdicts={"ep_1-r0": 1})
    assert experience.outcome_reward == -1.0
    assert signals(experience) == [(None, 0.0), (None, 0.0)]


def test_words_about_a_later_answer_than_the_last_thumb_are_its_rating() -> None:
    experience = priced(
        interaction(0), interaction(1), interaction(2), ratings=(thumb(0.0, 0),), verdicts={"ep_1-r1": 1}
    )
    assert (experience.outcome, experience.outcome_turn) == (0, 0)
    assert signals(experience) == [(None, 0.0), (1.0, 0.3), (None, 0.0)]


def test_nobody_reacted_is_none_and_not_zero() -> None:
    experience = priced(interaction(0), interaction(1))
    assert (experience.outcome, experience.outcome_reward, experience.thumb) == (None, None, None)
    assert experience.outcome_source is None
    assert experience.outcome_turn == 1
    assert signals(experience) == [(None, 0.0), (None, 0.0)]


def test_words_that_are_not_trusted_are_silence() -> None:
    experience = price(
        joined(interaction(0), interaction(1)),
        {"ep_1-r0": 1},
        trust=Trust(rating=0.7, implicit=0.0),
        rules=RULES,
    )
    assert (experience.outcome, experience.outcome_reward) == (None, None)


def test_an_episode_rating_is_the_outcome_and_leaves_response_ratings_where_they_are() -> None:
    experience = priced(interaction(0), interaction(1), ratings=(thumb(1.0, 1), thumb(0.0, None)))
    assert (experience.outcome, experience.outcome_reward, experience.thumb) == (0, -1.0, 0)
    assert signals(experience) == [(None, 0.0), (1.0, 0.7)]


def test_a_rated_tool_call_belongs_to_the_turn_that_made_it_and_is_no_outcome() -> None:
    experience = priced(interaction(0, turns=(LOOKUP, turn())), ratings=(thumb(0.0, 0, call="call_1"),))
    assert signals(experience) == [(-1.0, 0.7), (None, 0.0)]
    assert experience.outcome is None


def test_two_raters_who_disagree_cancel_out() -> None:
    experience = priced(interaction(0), ratings=(thumb(1.0, rater="a"), thumb(0.0, rater="b")))
    assert (experience.outcome, experience.outcome_reward, experience.ratings) == (None, 0.0, 2)


def test_a_run_with_more_calls_weighs_no_more() -> None:
    short = priced(interaction(0), ratings=(thumb(1.0),))
    long = priced(interaction(0, turns=(LOOKUP, LOOKUP, turn())), ratings=(thumb(1.0),))
    assert short.outcome_reward == long.outcome_reward == 1.0
    assert [rating for rating, _ in signals(long)] == [None, None, None]
    assert long.outcome_turn == 2


def test_a_rated_run_without_turns_trains_on_nothing() -> None:
    experience = priced(interaction(0, turns=()), ratings=(thumb(1.0),))
    assert (experience.turns, experience.outcome_turn) == ((), None)
    assert (experience.trainable, experience.reason) == (False, "empty")
    assert experience.outcome == 1


def test_turns_keep_their_order_and_know_where_they_end() -> None:
    experience = priced(interaction(0, turns=(LOOKUP, turn())), interaction(1))
    assert [each.ends_interaction for each in experience.turns] == [False, True, True]
    assert [each.interaction for each in experience.turns] == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arm": "holdout"}, "holdout"),
        ({"flags": ("evaluation",)}, "evaluation"),
        ({"sampling": Sampling(temperature=0.0)}, "temperature"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p"),
        ({"sampling": Sampling(other=("grammar",))}, "grammar"),
        ({"status": "aborted"}, "aborted"),
        ({"status": "failed"}, "failed"),
        ({"turns": (turn(flaw="no_logprobs"),)}, "no_logprobs"),
    ],
)
def test_what_must_not_be_trained_says_why(changes: dict[str, object], reason: str) -> None:
    experience = priced(interaction(0, **changes))
    assert (experience.trainable, experience.reason) == (False, reason)


def test_limited_and_faulty_turns_stay_in_training_with_their_price() -> None:
    bad = call_turn(ToolCall(id="c", name="", arguments="(", error="a call is written name(argument)"))
    experience = priced(interaction(0, turns=(bad,), status="limited"))
    assert experience.trainable
    assert experience.turns[0].untrainable is None
    assert experience.turns[0].channels.tools == pytest.approx(-0.2)


def test_one_untrainable_turn_does_not_take_the_episode_with_it() -> None:
    experience = priced(interaction(0, turns=(turn(flaw="no_logprobs"),)), interaction(1))
    assert experience.trainable
    assert [each.untrainable for each in experience.turns] == ["no_logprobs", None]


def outcome(fault: str | None) -> ToolOutcome:
    return ToolOutcome.model_validate({"call_id": "c", "name": "flights", "content": "x", "fault": fault})


@pytest.mark.parametrize(
    ("fault", "error", "expected"),
    [
        (None, None, 0.0),
        ("unknown_tool", "unknown tool 'x'", -0.2),
        ("malformed", "the closing parenthesis is missing", -0.2),
        ("arguments", None, -0.1),
        ("exception", None, 0.0),
        ("timeout", None, 0.0),
        ("limit", None, 0.0),
        ("limit", "the closing parenthesis is missing", -0.2),
    ],
)
def test_a_calls_fault_is_priced_once(fault: str | None, error: str | None, expected: float) -> None:
    call = ToolCall(id="c", name="flights", arguments="Rome", error=error)
    assert tool_penalty(call_turn(call, results=(outcome(fault),)), Penalties()) == pytest.approx(expected)


def test_an_empty_turn_is_penalised_and_many_faults_stop_at_the_floor() -> None:
    assert tool_penalty(turn("", raw_text=" "), Penalties()) == -0.5
    calls = tuple(ToolCall(id=f"c{n}", name="", arguments="", error="bad") for n in range(20))
    assert tool_penalty(call_turn(*calls), Penalties()) == -1.5
    assert tool_penalty(turn("Total 136."), Penalties()) == 0.0


def test_soft_overlong_starts_at_the_budget_and_ends_a_quarter_later() -> None:
    assert [soft_overlong(tokens, 8) for tokens in (1, 8, 9, 10, 11)] == [0.0, 0.0, -0.5, -1.0, -1.0]


def test_progress_sums_to_minus_the_first_potential_whatever_happens_between() -> None:
    gamma = 0.9
    gains = progress([0.2, 0.5, 1.0], gamma=gamma)
    assert gains == pytest.approx([0.9 * 0.5 - 0.2, 0.9 * 1.0 - 0.5, -1.0])
    assert sum(gain * gamma**step for step, gain in enumerate(gains)) == pytest.approx(-0.2)


def test_progress_reaches_the_turns_in_order() -> None:
    episode = joined(interaction(0, turns=(LOOKUP, turn())))
    experience = price(episode, {}, trust=TRUST, rules=RULES, potentials=[0.0, 0.5])
    assert [each.channels.progress for each in experience.turns] == pytest.approx([0.495, -0.5])


def test_the_rater_is_the_named_user_else_the_episode() -> None:
    assert priced(interaction(0)).rater == "user-hash"
    assert priced(interaction(0, user=None)).rater == nobody("owner", "ep_1")
    words = priced(
        interaction(0), interaction(1), verdicts={"ep_1-r0": 1}, ratings=(thumb(1.0, 0, "call_1"),)
    )
    assert (words.outcome_source, words.rater) == (OutcomeSource.IMPLICIT, "user-hash")


@pytest.mark.parametrize(
    ("stop_reason", "tokens", "penalty"),
    [
        ("stop", 8, 0.0),
        ("stop", 9, -0.5),
        ("stop", 10, -1.0),
        ("length", 7, 0.0),
        ("length", 8, -1.0),
        ("length", 9, -1.0),
    ],
)
def test_41_a_turn_cut_at_the_budget_is_trained_with_the_full_length_penalty(
    stop_reason: str, tokens: int, penalty: float
) -> None:
    cut = turn(token_ids=tuple(range(tokens)), logprobs=(-0.1,) * tokens, stop_reason=stop_reason)
    experience = priced(interaction(0, turns=(cut,)), ratings=(thumb(0.0),))
    [only] = experience.turns
    assert (only.channels.length, only.untrainable, experience.outcome_reward) == (penalty, None, -1.0)


@pytest.mark.parametrize("number", [1, None], ids=["last answer", "whole episode"])
def test_whoever_rated_the_outcome_is_the_rater_whose_share_is_capped(number: int | None) -> None:
    ratings = (
        thumb(1.0, 0, rater="early"),
        thumb(1.0, number, rater="first"),
        thumb(0.0, number, rater="checker"),
    )
    assert priced(interaction(0), interaction(1), ratings=ratings).rater == "checker"


def test_the_cutoff_is_the_close_plus_grace() -> None:
    assert priced(interaction(0)).cutoff_at == 20_500


def test_a_withdrawn_episode_says_nothing_but_that() -> None:
    experience = price(
        joined(interaction(0), ratings=(thumb(1.0),), withdrawn=True), {}, trust=TRUST, rules=RULES
    )
    assert (experience.withdrawn, experience.trainable, experience.reason) == (True, False, "withdrawn")
    assert (experience.turns, experience.user_texts, experience.outcome) == ((), (), None)
    assert withdrawal(1).episode_id == experience.episode_id


def test_the_id_is_the_inputs_hash() -> None:
    first = priced(interaction(0))
    assert first.id == priced(interaction(0)).id
    judged = priced(interaction(0), verdicts={"ep_1-r0": 1})
    other = price(joined(interaction(0), keys=("i/ep_1-r0", "f/fb_1/1")), {}, trust=TRUST, rules=RULES)
    again = price(joined(interaction(0), revision=2), {}, trust=TRUST, rules=RULES)
    assert len({first.id, judged.id, other.id}) == 3
    assert again.id == first.id
