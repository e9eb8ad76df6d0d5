"""When a version is promoted or rolled back: units in, transitions out; no clock, no I/O.

A share alone never promotes and missing data never passes. Whatever aborts is looked at before whatever promotes,
after every unit; alpha is fixed when the canary begins.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from deploy.canary.evidence import SRM_BAR
from deploy.canary.guardrails import count_faults
from deploy.canary.trial import (
    CONTROLLER,
    RUNNING,
    Canary,
    Moved,
    Phase,
    Transition,
    end,
    move,
    observed_loss,
)
from feedback.agent_file import Analysis, Hold, SetShare
from feedback.schemas import Verdict

MET = 3.0
"""Candidate episodes before a guardrail may speak; the champion's arm may be empty, for its faults are rare and known."""


def begin(canary: Canary, *, now: int) -> Moved:
    """Pending -> Progressing at its first share."""
    started = replace(canary, deadline_from=now)
    return through_steps(*move(started, Phase.PROGRESSING, "admitted", actor=CONTROLLER, now=now), now=now)


def saw_episode(canary: Canary, arm: int, *, propensity: float, faults: Mapping[str, bool]) -> Canary:
    """An episode closed: it counts for the guardrails and the assignment check, rated or not."""
    if canary.phase not in RUNNING or not 0.0 < propensity < 1.0:
        return canary
    return replace(
        canary,
        guardrails=count_faults(
            canary.guardrails,
            {name: float(fault) for name, fault in faults.items()},
            arm=float(arm),
            propensity=propensity,
        ),
        assignment=canary.assignment.update(arm, propensity=propensity),
        episodes0=canary.episodes0 + (1 - arm),
        episodes1=canary.episodes1 + arm,
    )


def took_unit(
    canary: Canary, arm: int, *, propensity: float, outcome: float | None, thumb: float | None = None
) -> Canary:
    """A unit reached its cut-off. Without an outcome it is silence, which is counted and is evidence of nothing."""
    if canary.phase not in RUNNING or not 0.0 < propensity < 1.0:
        return canary
    if outcome is None:
        return replace(canary, silent0=canary.silent0 + (1 - arm), silent1=canary.silent1 + arm)
    side = float(arm)
    return replace(
        canary,
        worse=canary.worse.update(outcome, side, propensity=propensity),
        better=canary.better.update(outcome, side, propensity=propensity),
        thumbs=canary.thumbs if thumb is None else canary.thumbs.update(thumb, side, propensity=propensity),
        reaction=canary.reaction.update(arm, propensity=propensity),
    )


def judge(canary: Canary, *, now: int, newer_waits: bool, allowance: float) -> Moved:
    """One look. `allowance` is how much lower an observed mean may still be promoted (the budget that is left)."""
    if canary.phase not in RUNNING:
        return canary, ()
    if cause := harm(canary):
        return end(canary, Phase.ABORTED, Verdict.ROLLED_BACK, reason=cause, actor=CONTROLLER, now=now)
    if newer_waits and _is_inconclusive(canary, now=now):
        reason = f"no verdict after {canary.units} units and a newer version waits"
        return end(canary, Phase.SUPERSEDED, Verdict.SUPERSEDED, reason=reason, actor=CONTROLLER, now=now)
    if canary.phase is Phase.PAUSED:
        return canary, ()
    if cause := _doubt(canary, now=now):
        paused = replace(canary, share=0.0, paused_by=CONTROLLER)
        return move(paused, Phase.PAUSED, cause, actor=CONTROLLER, now=now)
    canary, log = through_steps(canary, (), now=now)
    if _is_proven(canary, allowance=allowance):
        promoted, last = end(
            canary, Phase.PROMOTING, Verdict.PROMOTED, reason="better", actor=CONTROLLER, now=now
        )
        return promoted, (*log, *last)
    return canary, log


def harm(canary: Canary) -> str | None:
    """Why this candidate must go now, or None. Only these may end a trial against it, and only these while paused."""
    settings = canary.settings
    if float(canary.worse.log_e) >= -math.log(settings.alphaRollback):
        return "worse"
    if float(canary.thumbs.log_e) >= -math.log(settings.guardrailAlpha):
        return "worse by thumbs alone"
    for name, process in canary.guardrails.items():
        if float(process.log_e) >= -math.log(settings.guardrailAlpha) and float(process.n1) >= MET:
            return f"guardrail {name}"
    return None


def _is_proven(canary: Canary, *, allowance: float) -> bool:
    """At the last step, "better" above its bar, units enough in both arms, and the loss within the budget."""
    needed = max((step.hold.units for step in canary.settings.steps if isinstance(step, Hold)), default=1)
    return (
        canary.phase is Phase.PROGRESSING
        and at_last_step(canary)
        and float(canary.better.log_e) >= -math.log(canary.settings.alphaPromote)
        and min(float(canary.better.n0), float(canary.better.n1)) >= needed
        and observed_loss(canary) <= allowance
    )


def _is_inconclusive(canary: Canary, *, now: int) -> bool:
    """Nothing said in time, and the agent file lets a newer version take over; a person's pause is respected."""
    if canary.settings.onInconclusive != "supersede":
        return False
    if canary.phase is Phase.PAUSED:
        return canary.paused_by == CONTROLLER
    return canary.units >= canary.settings.supersedeAfter or _is_late(canary, now=now)


def _doubt(canary: Canary, *, now: int) -> str | None:
    """Why the trial cannot go on without a person, or None."""
    if canary.assignment.p < SRM_BAR:
        return "assignment_srm: the arms are not filled as the split says"
    if canary.reaction.p < SRM_BAR:
        return "rated_srm: one arm is reacted to more often, so its outcomes do not compare"
    return "deadline" if _is_late(canary, now=now) else None


def _is_late(canary: Canary, *, now: int) -> bool:
    return now - canary.deadline_from >= canary.settings.deadline * 1000


def through_steps(canary: Canary, log: tuple[Transition, ...], *, now: int) -> Moved:
    """Take every step that can be left now."""
    while not at_last_step(canary):
        step = canary.settings.steps[canary.step]
        if isinstance(step, Hold) and float(canary.worse.n1) < step.hold.units:
            break
        share, reason = canary.share, f"hold passed with {round(float(canary.worse.n1))} units"
        if isinstance(step, SetShare):
            share, reason = step.setShare, f"share {step.setShare:g}"
        onward = replace(canary, step=canary.step + 1, share=share)
        canary, last = move(onward, canary.phase, reason, actor=CONTROLLER, now=now)
        log = (*log, *last)
    return canary, log


def at_last_step(canary: Canary) -> bool:
    return isinstance(canary.settings.steps[canary.step], Analysis)


def share_at(canary: Canary) -> float:
    """The share that the steps behind it have set."""
    before = canary.settings.steps[: canary.step]
    return next((step.setShare for step in reversed(before) if isinstance(step, SetShare)), 0.0)
