"""What the critic sees of h_t: a hidden state of the frozen reference, and facts known before the action.

Invariant: nothing caused by the action reaches V(h_t). A baseline that sees its own action, the tool's answer or the
outcome biases the policy's gradient (with the outcome it is exactly zero: algorithms.md T16), so the guard is loud.
Shapes: B rows, T tokens, D hidden, N turns, F features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from feedback.schemas import PricedTurn

SIDE_FACTS = 5
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


def state_features(
    hidden_BTD: Tensor, row_N: Tensor, seen_N: Tensor, *, first_sampled_N: Tensor, side_NS: Tensor
) -> Tensor:
    """feature_NF = hidden state at (row, seen) joined with the side facts. Raises LeakError on anything later.

    A causal model's hidden state at a position depends on nothing after it, so checking the position is enough.
    """
    require_before_action(seen_N, first_sampled_N)
    return torch.cat([hidden_BTD[row_N, seen_N].float(), side_NS.float()], dim=-1)


def side_facts(turns: Sequence[PricedTurn], index: int) -> tuple[float, ...]:
    """Facts about h_t of turn `index`, from the turns before it and its own prompt alone."""
    before, now = turns[:index], turns[index]
    faults = sum(1 for t in before if any(r.fault for r in t.turn.tool_results) or t.channels.tools < 0)
    here = sum(1 for t in before if t.interaction == now.interaction)
    return (
        index / COUNT_SCALE,
        now.interaction / COUNT_SCALE,
        here / COUNT_SCALE,
        faults / COUNT_SCALE,
        len(now.turn.prompt_ids) / TOKENS_SCALE,
    )
