"""What a trial is: its phases and which may follow which, everything it knows, and the lines it logs.

A finished trial never moves again: `LEGAL` has no way out of it, and every change of phase goes through `move`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from deploy.canary.evidence import RatioChecks, Side, TwoArm, confidence_sequence, informed
from deploy.canary.guardrails import start_guardrails
from feedback.agent_file import Canary as Settings
from feedback.schemas import Verdict


class Phase(StrEnum):
    """Where a canary is in its life."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    PROMOTING = "Promoting"
    SUCCEEDED = "Succeeded"
    ABORTED = "Aborted"
    SUPERSEDED = "Superseded"
    FAILED = "Failed"


LEGAL: Mapping[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.PROGRESSING, Phase.ABORTED, Phase.SUPERSEDED, Phase.FAILED}),
    Phase.PROGRESSING: frozenset(
        {Phase.PROGRESSING, Phase.PAUSED, Phase.PROMOTING, Phase.ABORTED, Phase.SUPERSEDED, Phase.FAILED}
    ),
    Phase.PAUSED: frozenset(
        {Phase.PROGRESSING, Phase.PROMOTING, Phase.ABORTED, Phase.SUPERSEDED, Phase.FAILED}
    ),
    Phase.PROMOTING: frozenset({Phase.SUCCEEDED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.ABORTED: frozenset(),
    Phase.SUPERSEDED: frozenset(),
    Phase.FAILED: frozenset(),
}

RUNNING = frozenset({Phase.PROGRESSING, Phase.PAUSED})
FINISHED = frozenset(phase for phase, after in LEGAL.items() if not after)

BURN_IN = 1.0
"""Units of each arm before outcomes are bet on: ratings of one arm alone are missing data, not evidence."""

CONTROLLER = "controller"
"""The actor of every transition that no person asked for."""


class Illegal(ValueError):
    """This verb means nothing in this phase; the text says what would."""


@dataclass(frozen=True)
class Known:
    """What the champion's earlier episodes say before the canary begins: outcome rate, and rate free of each fault."""

    outcome: float | None
    clean: Mapping[str, float]


@dataclass(frozen=True)
class Canary:
    """Everything a trial knows. `share` is what the split says; `step` the index of the step it is at."""

    canary_id: str
    version: str
    settings: Settings
    worse: TwoArm
    better: TwoArm
    thumbs: TwoArm
    guardrails: Mapping[str, TwoArm]
    phase: Phase = Phase.PENDING
    step: int = 0
    share: float = 0.0
    deadline_from: int = 0
    paused_by: str | None = None
    reason: str = ""
    verdict: Verdict | None = None
    assignment: RatioChecks = field(default_factory=RatioChecks)
    reaction: RatioChecks = field(default_factory=RatioChecks)
    episodes0: int = 0
    episodes1: int = 0
    silent0: int = 0
    silent1: int = 0

    @property
    def units(self) -> int:
        """Episodes of either arm that have an outcome."""
        return round(float(self.worse.n0) + float(self.worse.n1))


@dataclass(frozen=True)
class Transition:
    """One line of the append-only log."""

    before: Phase
    after: Phase
    reason: str
    actor: str
    at: int
    evidence: Mapping[str, Any]


Moved = tuple[Canary, tuple[Transition, ...]]


def create(canary_id: str, version: str, *, settings: Settings, known: Known) -> Canary:
    """A canary that waits its turn, its bets started from what is known of the champion."""
    return Canary(
        canary_id=canary_id,
        version=version,
        settings=settings,
        worse=replace(_start("worse", settings, known), burn_in=BURN_IN),
        better=replace(_start("better", settings, known), burn_in=BURN_IN),
        thumbs=TwoArm("worse", settings.margin, burn_in=BURN_IN),
        guardrails=start_guardrails(settings.guardrailMargin, known.clean),
    )


def _start(side: Side, settings: Settings, known: Known) -> TwoArm:
    """Beta(1/2, 1/2), or the informed start: the champion's known mean, the candidate `lift` above (or below) it."""
    prior = settings.prior
    if prior.strength == 0 or known.outcome is None:
        return TwoArm(side, settings.margin)
    expected = known.outcome + (prior.lift if side == "better" else -prior.lift)
    return informed(
        side,
        settings.margin,
        champion=known.outcome,
        candidate=min(1.0, max(0.0, expected)),
        strength=prior.strength,
    )


def move(canary: Canary, after: Phase, reason: str, *, actor: str, now: int) -> Moved:
    """Change the phase (or stay in it at a new step) and say so. Raises Illegal."""
    if after not in LEGAL[canary.phase]:
        raise Illegal(f"a {canary.phase} canary cannot become {after}")
    line = Transition(canary.phase, after, reason, actor, now, evidence(canary))
    return replace(canary, phase=after, reason=reason), (line,)


def end(canary: Canary, phase: Phase, verdict: Verdict, *, reason: str, actor: str, now: int) -> Moved:
    """The verdict: nobody new meets the candidate."""
    return move(replace(canary, share=0.0, verdict=verdict), phase, reason, actor=actor, now=now)


def observed_loss(canary: Canary) -> float:
    """How far the candidate's observed mean lies below the champion's; 0 when it does not, or when nothing is known."""
    mean0, mean1 = mean(canary.worse, 0), mean(canary.worse, 1)
    return max(0.0, mean0 - mean1) if mean0 is not None and mean1 is not None else 0.0


def mean(process: TwoArm, arm: int) -> float | None:
    """The observed mean of an arm; None without units."""
    n, total = (process.n1, process.total1) if arm else (process.n0, process.total0)
    return float(total) / float(n) if float(n) > 0 else None


def evidence(canary: Canary) -> dict[str, Any]:
    """What a person is shown, and what every transition is logged with. Logarithms are base 10, as are the bars."""
    settings = canary.settings
    return {
        "worse": _side(canary.worse, settings.alphaRollback),
        "better": _side(canary.better, settings.alphaPromote),
        "thumbs": _side(canary.thumbs, settings.guardrailAlpha),
        "guardrails": {
            name: _side(process, settings.guardrailAlpha) for name, process in canary.guardrails.items()
        },
        "assignment_srm": canary.assignment.p,
        "rated_srm": canary.reaction.p,
        "arms": {"champion": _arm(canary, 0), "candidate": _arm(canary, 1)},
        "units": canary.units,
        "margin": settings.margin,
    }


def _side(process: TwoArm, alpha: float) -> dict[str, float]:
    return {
        "log10_e": float(process.log_e) / math.log(10),
        "log10_peak": float(process.peak) / math.log(10),
        "log10_bar": -math.log10(alpha),
    }


def _arm(canary: Canary, arm: int) -> dict[str, Any]:
    n = round(float(canary.worse.n1 if arm else canary.worse.n0))
    total = float(canary.worse.total1 if arm else canary.worse.total0)
    low, high = confidence_sequence(total, n, alpha=0.05)
    return {
        "n": n,
        "mean": mean(canary.worse, arm),
        "low": low,
        "high": high,
        "silent": canary.silent1 if arm else canary.silent0,
        "episodes": canary.episodes1 if arm else canary.episodes0,
    }
