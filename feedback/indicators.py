"""Per-episode facts that the guardrails bet on, known whether or not anybody rated. Pure."""

from collections.abc import Sequence

from feedback.schemas import Indicators, Interaction, Status, Turn

INVALID_CALL = frozenset({"unknown_tool", "malformed", "arguments"})
"""Faults that the model made, not the tool."""


def indicators(interactions: Sequence[Interaction]) -> Indicators:
    """Latency is the mean of the episode's replies: it does not grow with their number."""
    turns = [turn for interaction in interactions for turn in interaction.turns]
    return Indicators(
        request_error=any(interaction.status is Status.FAILED for interaction in interactions),
        invalid_tool_call=any(_has_invalid_call(turn) for turn in turns),
        clarifying_question=any(_asks_back(interaction) for interaction in interactions),
        latency_ms=sum(interaction.latency_ms for interaction in interactions) / max(1, len(interactions)),
        completion_tokens=sum(len(turn.token_ids) for turn in turns),
    )


def _has_invalid_call(turn: Turn) -> bool:
    return any(call.error is not None for call in turn.tool_calls) or any(
        result.fault in INVALID_CALL for result in turn.tool_results
    )


def _asks_back(interaction: Interaction) -> bool:
    """The reply ends in a question and no tool was called for it."""
    turns = interaction.turns
    if not turns or any(turn.tool_calls for turn in turns):
        return False
    return turns[-1].shown_text.rstrip().endswith("?")
