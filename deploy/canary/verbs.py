"""The verbs that end, hold or hurry a trial: a person's, logged with the actor, and the controller's own.

Each is a pure function from a canary to the moved canary and the lines to log; one that means nothing in the
canary's phase raises Illegal and changes nothing.
"""

from dataclasses import replace

from deploy.canary.evidence import RatioChecks
from deploy.canary.trial import CONTROLLER, RUNNING, Canary, Illegal, Moved, Phase, Transition, end, move
from deploy.canary.verdict import at_last_step, share_at, through_steps
from feedback.schemas import Verdict


def pause(canary: Canary, *, actor: str, now: int) -> Moved:
    """A person holds the trial where it is: the share stays, nothing is promoted, harm still aborts."""
    _require(canary, {Phase.PROGRESSING}, "pause")
    return move(replace(canary, paused_by=actor), Phase.PAUSED, "paused", actor=actor, now=now)


def resume(canary: Canary, *, actor: str, now: int) -> Moved:
    """Go on at the step's share, with a new deadline; what the ratio checks had against it is taken as answered."""
    _require(canary, {Phase.PAUSED}, "resume")
    back = replace(
        canary,
        share=share_at(canary),
        paused_by=None,
        deadline_from=now,
        assignment=RatioChecks(),
        reaction=RatioChecks(),
    )
    return move(back, Phase.PROGRESSING, "resumed", actor=actor, now=now)


def skip_step(canary: Canary, *, actor: str, now: int) -> Moved:
    """Argo's `promote`: leave the current step; leaving the last one makes the candidate champion."""
    _require(canary, RUNNING, "promote")
    if at_last_step(canary):
        return promote(canary, actor=actor, now=now)
    log: tuple[Transition, ...] = ()
    if canary.phase is Phase.PAUSED:
        canary, log = resume(canary, actor=actor, now=now)
    moved, last = move(
        replace(canary, step=canary.step + 1), canary.phase, "step skipped", actor=actor, now=now
    )
    return through_steps(moved, (*log, *last), now=now)


def promote(canary: Canary, *, actor: str, now: int) -> Moved:
    """Argo's `promote --full`: a person makes the candidate champion, whatever the evidence says."""
    _require(canary, RUNNING, "promote")
    return end(canary, Phase.PROMOTING, Verdict.PROMOTED, reason="promoted by hand", actor=actor, now=now)


def abort(canary: Canary, *, actor: str, now: int, reason: str = "aborted by hand") -> Moved:
    """The one verb to stop it."""
    _require(canary, {Phase.PENDING, *RUNNING}, "abort")
    return end(canary, Phase.ABORTED, Verdict.ABORTED, reason=reason, actor=actor, now=now)


def supersede(canary: Canary, *, reason: str, now: int) -> Moved:
    """A newer version takes its place."""
    return end(canary, Phase.SUPERSEDED, Verdict.SUPERSEDED, reason=reason, actor=CONTROLLER, now=now)


def fail(canary: Canary, *, reason: str, now: int) -> Moved:
    """It cannot be tried at all; that is no evidence about it, and it needs a retry."""
    return end(canary, Phase.FAILED, Verdict.ABORTED, reason=reason, actor=CONTROLLER, now=now)


def delivered(canary: Canary, *, now: int) -> Moved:
    """Promoting -> Succeeded: the split that names the new champion has left."""
    return move(canary, Phase.SUCCEEDED, "split delivered", actor=CONTROLLER, now=now)


def _require(canary: Canary, phases: frozenset[Phase] | set[Phase], verb: str) -> None:
    if canary.phase not in phases:
        wanted = " or ".join(sorted(phases))
        raise Illegal(f"{verb} needs a canary that is {wanted}; {canary.canary_id} is {canary.phase}")
