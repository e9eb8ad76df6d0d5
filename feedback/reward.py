"""How a thumbs-down becomes a number: a joined episode is priced turn by turn (algorithms.md 9.2). Pure.

Every signal is counted once: what ends the work is the outcome and nothing else; missing is None and never zero.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedback.agent_file import Penalties, Rewards
from feedback.indicators import indicators
from feedback.join import Joined, Rating
from feedback.people import nobody
from feedback.schemas import (
    Channels,
    Experience,
    Interaction,
    OutcomeSource,
    PricedTurn,
    Status,
    ToolCall,
    ToolOutcome,
    Turn,
    canonical,
)

TOOLS_FLOOR = -1.5
_BROKEN = frozenset({Status.ABORTED, Status.FAILED})


@dataclass(frozen=True, slots=True)
class Trust:
    """How far each kind of signal is believed: tau in [0, 1]. An implicit signal worth nothing is not there."""

    rating: float
    implicit: float


@dataclass(frozen=True, slots=True)
class PriceRules:
    """What pricing needs of the agent file."""

    rewards: Rewards
    gamma: float
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """What was said of one answer or of the whole: `u` in [-1, 1]."""

    u: float
    source: OutcomeSource

    @property
    def bit(self) -> int | None:
        """1 good, 0 bad, None when opinions cancel out."""
        return None if self.u == 0 else int(self.u > 0)

    def tau(self, trust: Trust) -> float:
        return trust.rating if self.source is OutcomeSource.THUMB else trust.implicit

    def reward(self, trust: Trust) -> float:
        """As an outcome a thumb weighs 1 and words weigh what they are trusted."""
        return self.u if self.source is OutcomeSource.THUMB else self.u * trust.implicit


def price(
    joined: Joined,
    verdicts: Mapping[str, int],
    *,
    trust: Trust,
    rules: PriceRules,
    potentials: Sequence[float] | None = None,
) -> Experience:
    """The experience of a closed episode.

    `verdicts` says of a response id what the user message after it meant: 1 thanks, -1 complaint (silence is left
    out). `potentials` is Phi before each turn, all turns of the episode in order; None when no sub-goals are declared.
    """
    if joined.withdrawn:
        return _tombstone(joined, rules)
    believed = verdicts if trust.implicit > 0 else {}
    answers = opinions(joined, believed)
    whole = _mean_opinion(rating for rating in joined.ratings if rating.response_id is None)
    end = _ending(answers, len(joined.interactions))
    outcome = whole or answers.get(end)
    priced = {index: said for index, said in answers.items() if whole is not None or index != end}
    turns = _priced_turns(joined, priced, trust=trust, rules=rules, potentials=potentials)
    explicit = whole or _last_thumb(answers)
    bit = None if outcome is None else outcome.bit
    reason = _reason(joined, turns)
    identity = _identity(joined, rules)
    judged = None if whole is not None else joined.interactions[end].response_id
    return Experience.model_validate(
        identity
        | {
            "rater": _newest_rater(joined, judged) or identity["rater"],
            "id": _input_hash(joined, [sorted(believed.items()), trust.implicit, potentials, rules]),
            "turns": turns,
            "user_texts": tuple(each.user_text for each in joined.interactions),
            "ratings": len(joined.ratings),
            "comparisons": joined.comparisons,
            "corrections": joined.corrections,
            "thumb": None if explicit is None else explicit.bit,
            "outcome": bit,
            "outcome_source": None if bit is None or outcome is None else outcome.source,
            "outcome_reward": None if outcome is None else outcome.reward(trust),
            "outcome_turn": _last_turn(turns, end),
            "judgement": {"trust": trust.implicit, "verdicts": dict(verdicts)},
            "indicators": indicators(joined.interactions),
            "trainable": reason is None,
            "reason": reason,
        }
    )


def opinions(joined: Joined, verdicts: Mapping[str, int]) -> dict[int, Opinion]:
    """What was said of each answer, by interaction: thumbs, else the words that followed."""
    found: dict[int, Opinion] = {}
    for index, interaction in enumerate(joined.interactions):
        thumbs = (
            rating
            for rating in joined.ratings
            if rating.response_id == interaction.response_id and rating.tool_call_id is None
        )
        said = _mean_opinion(thumbs)
        if said is None and (verdict := verdicts.get(interaction.response_id)):
            said = Opinion(float(verdict), OutcomeSource.IMPLICIT)
        if said is not None:
            found[index] = said
    return found


def soft_overlong(tokens: int, budget: int) -> float:
    """DAPO's soft overlong punishment: 0 up to the budget, then down to -1 over the next quarter of it."""
    return -min(1.0, max(0.0, tokens - budget) / (budget / 4))


def length_penalty(turn: Turn, budget: int) -> float:
    """The length channel of one turn. Cut by the token limit (`stop_reason: length`) it stays in the batch.

    Its sampled ids are exact and no end is invented for it; cut at or past the budget it is punished in full, as it
    would have gone on. Cut below the budget it costs nothing: that limit was the client's or the clock's.
    """
    tokens = len(turn.token_ids)
    return -1.0 if turn.stop_reason == "length" and tokens >= budget else soft_overlong(tokens, budget)


def progress(potentials: Sequence[float], *, gamma: float) -> list[float]:
    """Potential-based shaping F_t = gamma Phi(h_t+1) - Phi(h_t), with Phi(end) = 0 (Ng, Harada, Russell 1999)."""
    after = [*potentials[1:], 0.0]
    return [gamma * following - here for here, following in zip(potentials, after, strict=True)]


def tool_penalty(turn: Turn, penalties: Penalties) -> float:
    """The tools channel of one turn: each call's fault once, and the penalty of a turn that says and does nothing."""
    results = {result.call_id: result for result in turn.tool_results}
    total = sum(_call_penalty(call, results.get(call.id), penalties) for call in turn.tool_calls)
    if not turn.tool_calls and not turn.shown_text.strip():
        total += penalties.empty
    return max(TOOLS_FLOOR, total)


def _call_penalty(call: ToolCall, result: ToolOutcome | None, penalties: Penalties) -> float:
    faults = {
        "unknown_tool": penalties.unknown,
        "malformed": penalties.malformed,
        "arguments": penalties.arguments,
    }
    fault = faults.get(result.fault or "", 0.0) if result is not None else 0.0
    if call.error is None or fault:
        return fault
    return penalties.unknown if call.error.startswith("unknown tool") else penalties.malformed


def _mean_opinion(ratings: Iterable[Rating]) -> Opinion | None:
    """Several raters of one target count as their mean."""
    scores = [rating.score for rating in ratings]
    return Opinion(2 * sum(scores) / len(scores) - 1, OutcomeSource.THUMB) if scores else None


def _newest_rater(joined: Joined, response_id: str | None) -> str | None:
    """Who last rated an answer, or (None) the whole: a program that rates many people's episodes is one rater."""
    raters = [
        rating.rater
        for rating in joined.ratings
        if rating.response_id == response_id and rating.tool_call_id is None
    ]
    return raters[-1] if raters else None


def _ending(answers: Mapping[int, Opinion], interactions: int) -> int:
    """The interaction that ends the work: the last with a thumb, else the last judged (a courtesy may follow), else the last."""
    thumbed = [index for index, said in answers.items() if said.source is OutcomeSource.THUMB]
    return max(thumbed or answers, default=interactions - 1)


def _last_thumb(answers: Mapping[int, Opinion]) -> Opinion | None:
    thumbed = [index for index, said in answers.items() if said.source is OutcomeSource.THUMB]
    return answers[max(thumbed)] if thumbed else None


def _priced_turns(
    joined: Joined,
    said: Mapping[int, Opinion],
    *,
    trust: Trust,
    rules: PriceRules,
    potentials: Sequence[float] | None,
) -> tuple[PricedTurn, ...]:
    count = sum(len(interaction.turns) for interaction in joined.interactions)
    gains = progress(potentials, gamma=rules.gamma) if potentials is not None else [0.0] * count
    turns: list[PricedTurn] = []
    for index, interaction in enumerate(joined.interactions):
        by_call = _call_opinions(joined.ratings, interaction.response_id)
        for place, turn in enumerate(interaction.turns):
            ends = place == len(interaction.turns) - 1
            opinion = (said.get(index) if ends else None) or _first(by_call, turn)
            turns.append(
                PricedTurn(
                    response_id=interaction.response_id,
                    interaction=index,
                    ends_interaction=ends,
                    turn=turn,
                    sampling=interaction.sampling,
                    channels=Channels(
                        rating=None if opinion is None else opinion.u,
                        tau=0.0 if opinion is None else opinion.tau(trust),
                        tools=tool_penalty(turn, rules.rewards.penalties),
                        progress=gains[len(turns)],
                        length=length_penalty(turn, rules.rewards.turn_budget),
                    ),
                    untrainable=_untrainable(interaction, turn),
                )
            )
    return tuple(turns)


def _call_opinions(ratings: Sequence[Rating], response_id: str) -> dict[str, Opinion]:
    """Ratings of single tool calls; they belong to the turn that made the call and are never an outcome."""
    calls = {r.tool_call_id for r in ratings if r.response_id == response_id and r.tool_call_id is not None}
    found = {call: _mean_opinion(r for r in ratings if r.tool_call_id == call) for call in calls}
    return {call: opinion for call, opinion in found.items() if opinion is not None}


def _first(by_call: Mapping[str, Opinion], turn: Turn) -> Opinion | None:
    return next((by_call[call.id] for call in turn.tool_calls if call.id in by_call), None)


def _untrainable(interaction: Interaction, turn: Turn) -> str | None:
    if turn.flaw is not None:
        return turn.flaw
    if interaction.status in _BROKEN:
        return interaction.status.value
    return interaction.sampling.untrainable_reason()


def _reason(joined: Joined, turns: Sequence[PricedTurn]) -> str | None:
    """Why the policy does not train on this episode at all."""
    if joined.interactions[0].arm == "holdout":
        return "holdout"
    if any("evaluation" in interaction.flags for interaction in joined.interactions):
        return "evaluation"
    if not turns:
        return "empty"
    if all(turn.untrainable for turn in turns):
        return turns[0].untrainable
    return None


def _last_turn(turns: Sequence[PricedTurn], interaction: int) -> int | None:
    """The last turn of an interaction; of the nearest earlier one where it has none."""
    return max((at for at, turn in enumerate(turns) if turn.interaction <= interaction), default=None)


def _tombstone(joined: Joined, rules: PriceRules) -> Experience:
    return Experience.model_validate(
        _identity(joined, rules)
        | {
            "id": _input_hash(replace(joined, keys=()), ["withdrawn"]),
            "flags": (),
            "turns": (),
            "user_texts": (),
            "ratings": 0,
            "trainable": False,
            "reason": "withdrawn",
            "withdrawn": True,
        }
    )


def _identity(joined: Joined, rules: PriceRules) -> dict[str, Any]:
    """What the first interaction fixed for the whole episode."""
    first = joined.interactions[0]
    user = next((each.user for each in joined.interactions if each.user is not None), None)
    return {
        "revision": joined.revision,
        "agent": first.agent,
        "episode_id": joined.episode_id,
        "key_owner": first.key_owner,
        "user": user,
        "rater": user or nobody(first.key_owner, joined.episode_id),
        "arm": first.arm,
        "propensity": first.propensity,
        "generation": first.generation,
        "canary_id": first.canary_id,
        "adapter_version": first.adapter_version,
        "flags": tuple(sorted({flag for each in joined.interactions for flag in each.flags})),
        "started_at": first.started_at,
        "closed_at": joined.closed_at,
        "cutoff_at": joined.closed_at + rules.grace_ms,
    }


def _input_hash(joined: Joined, others: Sequence[Any]) -> str:
    """The experience's id: the same records, priced by the same rules, are the same experience."""
    named = [
        other.rewards.model_dump(mode="json") if isinstance(other, PriceRules) else other for other in others
    ]
    inputs = canonical([joined.episode_id, joined.keys, joined.closed_at, named])
    return "ex_" + hashlib.sha256(inputs).hexdigest()[:32]
