"""Always-valid evidence about two arms: the F2 e-processes, the sequential ratio check, and a confidence sequence to look at.

A factor uses only estimates made before its unit (predictable), so looking after every unit costs nothing: by Ville's
inequality a true null ever reaches 1/alpha with probability at most alpha. Every number may be one float or an array of
parallel runs. Formulas F1, F2 and F9 are those of the conventions the project follows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Real = float | NDArray[np.float64]
Side = Literal["worse", "better"]

SRM_CONCENTRATION = 100.0
SRM_BAR = 0.001


@dataclass(frozen=True)
class TwoArm:
    """One side of F2 for outcomes in [0, 1]; arm 1 is the candidate, whose outcomes are shifted up by `margin`.

    H0 of "worse": mu1 >= mu0 - margin (reject: roll back). H0 of "better": mu1 <= mu0 - margin (reject: promote).
    `weight` and `sum` are the pseudo-counts of the two running estimates; `n` and `total` are what was observed.
    Nothing is bet until both arms have `burn_in` units: an arm that nobody rates is no evidence against either.
    """

    side: Side
    margin: float
    burn_in: float = 0.0
    weight0: Real = 1.0
    weight1: Real = 1.0
    sum0: Real = 0.5
    sum1: Real = 0.5
    n0: Real = 0.0
    n1: Real = 0.0
    total0: Real = 0.0
    total1: Real = 0.0
    log_e: Real = 0.0
    peak: Real = 0.0

    def update(self, y: Real, arm: Real, *, propensity: Real, counts: Real = 1.0) -> "TwoArm":
        """Bet on one unit: outcome `y` in `arm` (0 or 1), assigned to arm 1 with `propensity`; `counts` 0 leaves it out."""
        shifted = (y + self.margin * arm) / (1.0 + self.margin)
        mean0, mean1 = self.sum0 / self.weight0, self.sum1 / self.weight1
        factor = bet(shifted, arm, propensity, mean0, mean1)
        ahead = mean1 > mean0 if self.side == "better" else mean1 < mean0
        bets = ahead & (np.minimum(self.n0, self.n1) >= self.burn_in)
        log_e = self.log_e + counts * np.where(bets, np.log(factor), 0.0)
        in0, in1 = counts * (1.0 - arm), counts * arm
        return replace(
            self,
            weight0=self.weight0 + in0,
            weight1=self.weight1 + in1,
            sum0=self.sum0 + in0 * shifted,
            sum1=self.sum1 + in1 * shifted,
            n0=self.n0 + in0,
            n1=self.n1 + in1,
            total0=self.total0 + in0 * y,
            total1=self.total1 + in1 * y,
            log_e=_plain(log_e),
            peak=_plain(np.maximum(self.peak, log_e)),
        )


def bet(y: Real, arm: Real, propensity: Real, mean0: Real, mean1: Real) -> Real:
    """F2's factor: the likelihood of `y` in its own arm over that in the mixture of both; its mean is 1 when the arms are equal."""
    mixture = propensity * mean1 + (1.0 - propensity) * mean0
    own = arm * mean1 + (1.0 - arm) * mean0
    return y * own / mixture + (1.0 - y) * (1.0 - own) / (1.0 - mixture)


def informed(side: Side, margin: float, *, champion: float, candidate: float, strength: float) -> TwoArm:
    """A process whose estimates start at what is expected, each worth `strength` units. Any predictable start is valid."""
    shifted0 = min(max(champion / (1.0 + margin), 0.005), 0.995)
    shifted1 = min(max((candidate + margin) / (1.0 + margin), 0.005), 0.995)
    return TwoArm(
        side,
        margin,
        weight0=strength,
        weight1=strength,
        sum0=strength * shifted0,
        sum1=strength * shifted1,
    )


def p_value(process: TwoArm) -> float:
    """min(1, 1 / max E so far)."""
    return math.exp(-float(process.peak))


@dataclass(frozen=True)
class RatioCheck:
    """F9 at one expected share of arm 1: do units fall into the arms as the split says? (sample ratio mismatch)"""

    expected: Real
    n0: Real = 0.0
    n1: Real = 0.0
    log_bf: Real = 0.0

    def update(self, arm: Real, *, counts: Real = 1.0) -> "RatioCheck":
        """Multiply by the Dirichlet predictive of this unit's arm over its expected probability."""
        own_expected = arm * self.expected + (1.0 - arm) * (1.0 - self.expected)
        own_seen = arm * self.n1 + (1.0 - arm) * self.n0
        predictive = (SRM_CONCENTRATION * own_expected + own_seen) / (SRM_CONCENTRATION + self.n0 + self.n1)
        return replace(
            self,
            n0=self.n0 + counts * (1.0 - arm),
            n1=self.n1 + counts * arm,
            log_bf=_plain(self.log_bf + counts * np.log(predictive / own_expected)),
        )


@dataclass(frozen=True)
class RatioChecks:
    """One F9 per share the canary ran at; their product is again an e-process, so a ramp needs no correction."""

    stages: tuple[RatioCheck, ...] = ()
    peak: float = 0.0

    def update(self, arm: int, *, propensity: float) -> "RatioChecks":
        """Count one unit at its own share."""
        stages = {stage.expected: stage for stage in self.stages}
        stage = stages.get(propensity, RatioCheck(propensity))
        stages[propensity] = stage.update(float(arm))
        log_bf = sum(float(each.log_bf) for each in stages.values())
        return RatioChecks(tuple(stages.values()), max(self.peak, log_bf))

    @property
    def p(self) -> float:
        """Always-valid p-value; below SRM_BAR the split is not what it says."""
        return math.exp(-self.peak)


def confidence_sequence(successes: float, n: int, *, alpha: float) -> tuple[float, float]:
    """F1 with a uniform prior: the proportions not yet rejected at `alpha`, at any time (for display, never for a verdict)."""
    if n == 0:
        return 0.0, 1.0
    centre, bar = successes / n, -math.log(alpha)

    def rejected(p: float) -> bool:
        return beta_binomial_log_e(successes, n, p=p) >= bar

    return _edge(rejected, 0.0, centre), _edge(rejected, 1.0, centre)


def beta_binomial_log_e(successes: float, n: int, *, p: float, a: float = 1.0, b: float = 1.0) -> float:
    """log of F1: the beta-binomial mixture against the point null `p`."""
    fails = n - successes
    mixture = _log_beta(a + successes, b + fails) - _log_beta(a, b)
    return mixture - _times_log(successes, p) - _times_log(fails, 1.0 - p)


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Bisect between a rejected end and the accepted centre; the end itself when it is not rejected."""
    if not rejected(outside):
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2.0
        if rejected(middle):
            outside = middle
        else:
            inside = middle
    return inside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _times_log(count: float, p: float) -> float:
    """count * log p with 0 * log 0 = 0 and log 0 = -inf."""
    if count == 0:
        return 0.0
    return count * math.log(p) if p > 0 else -math.inf


def _plain(value: NDArray[np.float64]) -> Real:
    """A zero-dimensional result becomes a float, so that one run's state is plain JSON."""
    return float(value) if np.ndim(value) == 0 else value
