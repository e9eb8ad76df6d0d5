"""Long conversations arrive: shortened by rule, flagged, and whole where they fit."""

import pytest

from feedback.agent_file import Rewards
from feedback.bus import MAX_VALUE_BYTES
from feedback.fit import OVERSIZED, TEXT_CHARACTERS, fit_experience, fit_interaction
from feedback.join import Joined
from feedback.reward import PriceRules, Trust, price
from feedback.schemas import Correction, Experience, Interaction, Turn
from tests.feedback.building import interaction, turn

RULES = PriceRules(rewards=Rewards(), gamma=0.99, grace_ms=0)


def long_turn(bytes_of_ids: int, text: str = "short") -> Turn:
    count = bytes_of_ids // 6  # "12345," each
    return turn(text, prompt_ids=(12345,) * count)


def episode(*turns: Turn) -> Experience:
    joined = Joined(
        episode_id="ep_1",
        interactions=(interaction(0, turns=turns),),
        ratings=(),
        keys=("i/ep_1-r0",),
        revision=1,
        closed_at=1,
        known_at=1,
    )
    return price(joined, {}, trust=Trust(0.7, 0.3), rules=RULES)


def test_what_fits_is_untouched() -> None:
    small = interaction(0, turns=(long_turn(900_000),))
    assert fit_interaction(small) == small.to_bytes()
    assert fit_experience(episode(long_turn(900_000))) == episode(long_turn(900_000)).to_bytes()


@pytest.mark.parametrize("size", [1_010_000, 5_000_000])
def test_the_oldest_ids_go_first_and_the_text_stays(size: int) -> None:
    old, new = long_turn(size), long_turn(100_000, "newest")
    value = fit_interaction(interaction(0, turns=(old, new)))
    assert len(value) <= MAX_VALUE_BYTES
    fitted = Interaction.from_bytes(value)
    assert [each.flaw for each in fitted.turns] == [OVERSIZED, None]
    assert [each.shown_text for each in fitted.turns] == ["short", "newest"]
    assert fitted.turns[1] == new
    assert OVERSIZED in fitted.flags


def test_an_experience_keeps_what_can_be_trained_and_says_what_cannot() -> None:
    experience = episode(long_turn(1_010_000), long_turn(100_000))
    fitted = Experience.from_bytes(fit_experience(experience))
    assert [each.untrainable for each in fitted.turns] == [OVERSIZED, None]
    assert (fitted.trainable, fitted.reason) == (True, None)
    assert OVERSIZED in fitted.flags
    alone = Experience.from_bytes(fit_experience(episode(long_turn(2_000_000))))
    assert (alone.trainable, alone.reason) == (False, OVERSIZED)


def test_endless_text_is_cut_to_its_beginning() -> None:
    words = "x" * 3_000_000
    fitted = Interaction.from_bytes(fit_interaction(interaction(0, turns=(turn(words),), user_text=words)))
    assert len(fitted.turns[0].shown_text) == len(fitted.user_text) == TEXT_CHARACTERS
    experience = Experience.from_bytes(fit_experience(episode(turn(words))))
    assert experience.turns[0].turn.raw_text == "x" * TEXT_CHARACTERS


@pytest.mark.parametrize("turns", [400, 3_000])
def test_a_conversation_without_end_still_leaves(turns: int) -> None:
    """Even the first 2,000 characters of each of its turns are too many: a value that does not fit would block the outbox."""
    many = tuple(turn("x" * 3_000, flaw="made up") for _ in range(turns))
    for value in (fit_interaction(interaction(0, turns=many)), fit_experience(episode(*many))):
        assert len(value) <= MAX_VALUE_BYTES
    sent = Experience.from_bytes(fit_experience(episode(*many)))
    assert (OVERSIZED in sent.flags, sent.trainable) == (True, False)
    assert len(sent.turns) == (turns if turns == 400 else 0)


def test_half_a_correction_is_left_out() -> None:
    """Cut to its beginning it would be learned as what should have been said."""
    words = "x" * 3_000_000
    texts = ("Total 136.", "y" * (TEXT_CHARACTERS + 1))
    said = tuple(Correction(response_id="ep_1-r0", text=text, rater="a") for text in texts)
    long = episode(turn(words)).model_copy(update={"corrections": said})
    fitted = Experience.from_bytes(fit_experience(long))
    assert [each.text for each in fitted.corrections] == ["Total 136."]
