"""What the critic sees of h_t: a hidden state of the frozen reference, and facts known before the action.

Invariant: nothing caused by the action reaches V(h_t). A baseline that sees its own action, the tool's answer or the
outcome biases the policy's gradient (with the outcome it is exactly zero: algorithms.md T16), so the guard is loud.
N turns.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from feedback.schemas import Experience, PricedTurn

SIDE_FACTS = 7
TOKENS_SCALE = 512.0
COUNT_SCALE = 4.0


class LeakError(ValueError):
    """A critic's input lies at or after the action it is meant to judge."""


def state_positions(first_sampled_N: Tensor) -> Tensor:
    """Position whose hidden state stands for h_t: the last token before the turn's first sampled one."""
    positions_N = first_sampled_N - 1
    if bool((positions_N < 0).any()):
        raise LeakError("a turn without a prompt has no state to value")
    return positions_N


def require_before_action(seen_N: Tensor, first_sampled_N: Tensor) -> None:
    """Raise LeakError unless each position read lies before its turn's first sampled token."""
    late_N = seen_N >= first_sampled_N
    if bool(late_N.any()):
        turn = int(late_N.nonzero()[0, 0])
        raise LeakError(
            f"turn {turn}: reads position {int(seen_N[turn])}, its action begins at {int(first_sampled_N[turn])}"
        )


def side_facts(experience: Experience, index: int, *, gamma: float) -> tuple[float, ...]:
    """Facts about h_t of turn `index`, from the turns before it, their judgement, and its own prompt alone.

    The policy is told neither of the last two: the share of sub-goals that checks have verified so far, and what a judge made
    of the words that followed earlier answers. A thumb is left out: an experience does not say when it was given.
    """
    before, now = experience.turns[:index], experience.turns[index]
    verdicts = {} if experience.judgement is None else experience.judgement.verdicts
    faults = sum(1 for t in before if any(r.fault for r in t.turn.tool_results) or t.channels.tools < 0)
    here = sum(1 for t in before if t.interaction == now.interaction)
    return (
        index / COUNT_SCALE,
        now.interaction / COUNT_SCALE,
        here / COUNT_SCALE,
        faults / COUNT_SCALE,
        len(now.turn.prompt_ids) / TOKENS_SCALE,
        verified(before, gamma=gamma),
        said(before, now, verdicts) / COUNT_SCALE,
    )


def verified(before: Sequence[PricedTurn], *, gamma: float) -> float:
    """Phi(h_t) from the progress of earlier turns alone: Phi(h_k+1) = (F_k + Phi(h_k)) / gamma from Phi(h_0) = 0."""
    phi = 0.0
    for priced in before:
        phi = min(1.0, max(0.0, (priced.channels.progress + phi) / gamma))
    return phi


def said(before: Sequence[PricedTurn], now: PricedTurn, verdicts: Mapping[str, int]) -> int:
    """Thanks less complaints after the answers of earlier interactions: the words stand in this one's prompt or before it."""
    answers = {priced.response_id for priced in before if priced.interaction < now.interaction}
    return sum(verdicts.get(response_id, 0) for response_id in answers)
