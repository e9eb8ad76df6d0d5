"""Guardrails: per-episode facts that are known whether or not anybody rated. They can only abort, never promote.

Each is an e-process for "the candidate's episodes are free of this fault less often than the champion's, by more
than the margin"; thresholds come from champion episodes that ended before, so a bet never sees its own unit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy.canary.evidence import Real, TwoArm, informed
from feedback.schemas import Indicators

GUARDRAILS = ("request_error", "invalid_tool_call", "clarifying_question", "latency", "length")

LATENCY_QUANTILE = 0.95
LENGTH_QUANTILE = 0.90
TRAILING = 200
"""Champion episodes that thresholds and expected rates are taken from."""
TRAILING_MIN = 40
"""Fewer than this and a threshold is unknown: latency and length wait, the others start from a guess."""

_GUESSED_CLEAN = 0.95
_STRENGTH = 10.0
_FEARED_DROP = 0.2


@dataclass(frozen=True)
class Thresholds:
    """What counts as slow and as long: the champion's trailing quantiles, None until there are enough episodes."""

    latency_ms: float | None = None
    tokens: float | None = None


def thresholds(trailing: Sequence[Indicators], *, beside: Sequence[Indicators]) -> Thresholds:
    """The champion's p90 of length from its `trailing` episodes, and its p95 of latency from those it answered `beside` the
    candidate: load changes by the hour and an adapter in the batch slows everyone, so history would accuse the innocent.
    """
    latencies = [each.latency_ms for each in beside]
    tokens = [float(each.completion_tokens) for each in trailing]
    return Thresholds(
        latency_ms=_quantile(latencies, LATENCY_QUANTILE) if len(latencies) >= TRAILING_MIN else None,
        tokens=_quantile(tokens, LENGTH_QUANTILE) if len(tokens) >= TRAILING_MIN else None,
    )


def faults(indicators: Indicators, limits: Thresholds) -> dict[str, bool]:
    """Which guardrails this episode trips; one whose threshold is unknown is left out, never counted as clean."""
    found = {
        "request_error": indicators.request_error,
        "invalid_tool_call": indicators.invalid_tool_call,
        "clarifying_question": indicators.clarifying_question,
    }
    if limits.latency_ms is not None:
        found["latency"] = indicators.latency_ms > limits.latency_ms
    if limits.tokens is not None:
        found["length"] = indicators.completion_tokens > limits.tokens
    return found


def expected_clean(trailing: Sequence[Indicators]) -> dict[str, float]:
    """How often the champion's episodes were free of each fault; quantile faults are known by construction."""
    expected = dict.fromkeys(GUARDRAILS, _GUESSED_CLEAN) | {"length": LENGTH_QUANTILE}
    if len(trailing) >= TRAILING_MIN:
        for name in ("request_error", "invalid_tool_call", "clarifying_question"):
            faulty = sum(faults(each, Thresholds())[name] for each in trailing)
            expected[name] = 1.0 - faulty / len(trailing)
    return expected


def start_guardrails(margin: float, clean: Mapping[str, float]) -> dict[str, TwoArm]:
    """One "worse" process per guardrail, its estimates starting at the champion's rate and at a drop that would hurt."""
    return {
        name: informed(
            "worse",
            margin,
            champion=clean[name],
            candidate=max(0.0, clean[name] - _FEARED_DROP),
            strength=_STRENGTH,
        )
        for name in GUARDRAILS
    }


def count_faults(
    processes: Mapping[str, TwoArm],
    found: Mapping[str, Real],
    *,
    arm: Real,
    propensity: Real,
    counts: Real = 1.0,
) -> dict[str, TwoArm]:
    """Bet on one episode; guardrails it says nothing about stay as they are."""
    counted = {
        name: processes[name].update(1.0 - fault, arm, propensity=propensity, counts=counts)
        for name, fault in found.items()
    }
    return dict(processes) | counted


def _quantile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least a share `q` of the values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]
