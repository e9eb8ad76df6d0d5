"""Progress towards the agent file's sub-goals: Phi is the share of their checks that the tool results so far satisfy.

A check is a predicate on results, never on what the agent says about them, so that talk earns nothing.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence

from feedback.agent_file import AgentFileError, Subgoal
from feedback.schemas import Interaction, ToolOutcome

Check = Callable[[Sequence[ToolOutcome]], bool]


def load_checks(subgoals: Iterable[Subgoal]) -> tuple[Check, ...]:
    """The predicates named `module:function`. Raises AgentFileError for one that is not there."""
    return tuple(_load(subgoal) for subgoal in subgoals)


def potentials(interactions: Sequence[Interaction], checks: Sequence[Check]) -> list[float] | None:
    """Phi before each turn of the episode; None when no sub-goal is declared."""
    if not checks:
        return None
    results: list[ToolOutcome] = []
    found = []
    for turn in (turn for interaction in interactions for turn in interaction.turns):
        found.append(sum(check(results) for check in checks) / len(checks))
        results.extend(turn.tool_results)
    return found


def _load(subgoal: Subgoal) -> Check:
    module, _, name = subgoal.check.partition(":")
    try:
        check: Check = vars(importlib.import_module(module))[name]
    except (ImportError, ValueError, KeyError) as error:
        raise AgentFileError(
            f"rewards.subgoals.{subgoal.name}: {subgoal.check!r} is not module:function ({error})"
        ) from error
    return check
