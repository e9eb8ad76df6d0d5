"""Corrections as answers: what people said a reply should have been, spelled as the model would have spoken it.

Invariant: it is read by the frozen reference for the reward model and by nothing else; nobody sampled it, so its turn
carries a flaw and no log-probability of it is ever trained on.
"""

from __future__ import annotations

from collections.abc import Callable

from feedback.agent_file import AgentFile
from feedback.schemas import Channels, Correction, Experience, PricedTurn, Turn
from online_trainer.lessons import child_id, corrected_id
from tools.template import Template, load_template

FLAW = "correction"

Spell = Callable[[str], list[int]]


def speller(agent: AgentFile) -> Spell:
    """Text to the ids that a turn of this agent would have sampled for it."""
    template = load_template(agent.model.template, agent.model.path)
    return lambda text: spelled(template, text)


def spelled(template: Template, text: str) -> list[int]:
    """Without the generation prompt before it and what closes a turn after its stop id."""
    whole = template.assistant(text)
    closing = len(template.close_turn(template.stop_ids[:1]))
    return whole[len(template.open_turn()) : len(whole) - closing]


def better_answers(experience: Experience, spell: Spell | None, *, max_length: int) -> list[Experience]:
    """One episode of a single turn for each correction of a reply; those of a step, or too long to read, are left out."""
    if spell is None:
        return []
    ends = {priced.response_id: priced for priced in experience.turns if priced.ends_interaction}
    found = []
    for correction in experience.corrections:
        given = ends.get(correction.response_id)
        if given is None or correction.tool_call_id is not None:
            continue
        ids = spell(correction.text)
        if ids and len(given.turn.prompt_ids) + len(ids) <= max_length:
            found.append(_answer(experience, correction, given, ids))
    return found


def _answer(experience: Experience, correction: Correction, given: PricedTurn, ids: list[int]) -> Experience:
    name = corrected_id(correction)
    turn = Turn(
        adapter_version=given.turn.adapter_version,
        prompt_ids=given.turn.prompt_ids,
        token_ids=tuple(ids),
        logprobs=(0.0,) * len(ids),
        raw_text=correction.text,
        shown_text=correction.text,
        stop_reason="stop",
        flaw=FLAW,
    )
    priced = PricedTurn(
        response_id=name,
        interaction=0,
        ends_interaction=True,
        turn=turn,
        sampling=given.sampling,
        channels=Channels(),
        untrainable=FLAW,
    )
    return experience.model_copy(
        update={
            "id": name,
            "episode_id": child_id(experience.episode_id, correction),
            "turns": (priced,),
            "user_texts": ("",),
            "ratings": 0,
            "comparisons": (),
            "corrections": (),
            "thumb": None,
            "outcome": None,
            "outcome_source": None,
            "outcome_reward": None,
            "outcome_turn": None,
            "trainable": False,
            "reason": FLAW,
        }
    )
