"""Makes a message fit the bus by a stated rule, with a flag: nothing is dropped in silence, and text outlives ids.

The rule: ids and log-probabilities are taken from turns, oldest first, until the message fits; such a turn is flawed
`oversized` and never trained. If texts alone are too long, each is cut to its first 2,000 characters (200, none), and
longer corrections are left out: half of a right answer is not one. What is too long even so goes without its turns.
"""

from collections.abc import Sequence

from feedback.bus import MAX_VALUE_BYTES
from feedback.schemas import Experience, Interaction, PricedTurn, Turn

OVERSIZED = "oversized"
TEXT_CHARACTERS = 2_000
_SHORTER = (TEXT_CHARACTERS, 200, 0)
_BARE = {
    "turns": (),
    "outcome_turn": None,
    "user_texts": (),
    "comparisons": (),
    "judgement": None,
    "trainable": False,
}


def fit_interaction(interaction: Interaction, *, limit: int = MAX_VALUE_BYTES) -> bytes:
    """The bytes to send for an interaction, at most `limit`."""
    value = interaction.to_bytes()
    if len(value) <= limit:
        return value
    turns = _lighten(interaction.turns, excess=len(value) - limit)
    flags = _flagged(interaction.flags)
    fitted = interaction.model_copy(update={"turns": turns, "flags": flags})
    if len(value := fitted.to_bytes()) <= limit:
        return value
    for characters in _SHORTER:
        cut = tuple(_cut(turn, characters) for turn in turns)
        text = interaction.user_text[:characters]
        fitted = fitted.model_copy(update={"turns": cut, "user_text": text})
        if len(value := fitted.to_bytes()) <= limit:
            return value
    return fitted.model_copy(update={"turns": ()}).to_bytes()


def fit_experience(experience: Experience, *, limit: int = MAX_VALUE_BYTES) -> bytes:
    """The bytes to send for an experience, at most `limit`."""
    value = experience.to_bytes()
    if len(value) <= limit:
        return value
    light = _lighten([priced.turn for priced in experience.turns], excess=len(value) - limit)
    fitted = _with_turns(experience, light)
    if len(value := fitted.to_bytes()) <= limit:
        return value
    for characters in _SHORTER:
        fitted = _with_turns(experience, [_cut(turn, characters) for turn in light])
        texts = tuple(text[:characters] for text in experience.user_texts)
        short = tuple(each for each in experience.corrections if len(each.text) <= characters)
        fitted = fitted.model_copy(update={"user_texts": texts, "corrections": short})
        if len(value := fitted.to_bytes()) <= limit:
            return value
    return fitted.model_copy(update=_BARE | {"reason": fitted.reason or OVERSIZED}).to_bytes()


def _lighten(turns: Sequence[Turn], *, excess: int) -> tuple[Turn, ...]:
    """Take the ids out of turns, oldest first, until `excess` bytes are saved."""
    kept: list[Turn] = []
    for turn in turns:
        if excess > 0:
            light = turn.model_copy(
                update={"prompt_ids": (), "token_ids": (), "logprobs": (), "flaw": turn.flaw or OVERSIZED}
            )
            excess -= len(turn.model_dump_json()) - len(light.model_dump_json())
            turn = light
        kept.append(turn)
    return tuple(kept)


def _with_turns(experience: Experience, turns: Sequence[Turn]) -> Experience:
    priced = tuple(_repriced(old, turn) for old, turn in zip(experience.turns, turns, strict=True))
    trainable = experience.trainable and any(each.untrainable is None for each in priced)
    return experience.model_copy(
        update={
            "turns": priced,
            "flags": _flagged(experience.flags),
            "trainable": trainable,
            "reason": experience.reason if trainable or experience.reason else OVERSIZED,
        }
    )


def _repriced(old: PricedTurn, turn: Turn) -> PricedTurn:
    return old.model_copy(update={"turn": turn, "untrainable": old.untrainable or turn.flaw})


def _cut(turn: Turn, characters: int) -> Turn:
    """Shorten every text of a turn that has no ids any more."""
    return turn.model_copy(
        update={
            "raw_text": turn.raw_text[:characters],
            "shown_text": turn.shown_text[:characters],
            "tool_calls": tuple(
                call.model_copy(update={"arguments": call.arguments[:characters]}) for call in turn.tool_calls
            ),
            "tool_results": tuple(
                result.model_copy(update={"content": result.content[:characters]})
                for result in turn.tool_results
            ),
        }
    )


def _flagged(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*flags, OVERSIZED}))
