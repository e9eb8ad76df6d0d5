"""`lr: auto` (design 13): the learning rate follows what updates measure, not a schedule.

Invariant: a rate is raised only by three updates that were measured at that very rate, and halved by one that went too
far; it stays within its bounds. The state is in the checkpoint.
"""

from dataclasses import dataclass, replace
from statistics import median

from feedback.schemas import Decision
from feedback.training_section import Optimizer

QUIET = 2e-4
LOUD = 1e-3
RAISE = 1.5
CUT = 0.5
WINDOW = 3
STANDING = {"k3_mu", "kl_ref", "ess"}
"""Reasons that a smaller step would hardly have changed: the distance to the sampler or the reference was there before."""


@dataclass(frozen=True)
class LearningRate:
    """The rate, its bounds, and the k3(old || new) of the updates made at it."""

    rate: float
    least: float
    most: float
    auto: bool
    recent: tuple[float, ...] = ()

    @classmethod
    def start(cls, settings: Optimizer) -> "LearningRate":
        """At `lr_start` when `lr` is auto, else fixed at `lr`."""
        if settings.lr == "auto":
            return cls(settings.lr_start, settings.lr_min, settings.lr_max, auto=True)
        return cls(settings.lr, settings.lr, settings.lr, auto=False)

    def after(self, k3_old: float, decision: Decision, reasons: tuple[str, ...] = ()) -> "LearningRate":
        """One more update. `k3_old` is the accepted step's; a shrunk or refused one cuts whatever it measured, unless every
        reason is about where the policy already stood.
        """
        if not self.auto:
            return self
        if reasons and all(reason.split()[0] in STANDING for reason in reasons):
            return self
        if decision is not Decision.ACCEPTED or not k3_old <= LOUD:
            return self._at(self.rate * CUT)
        recent = (*self.recent, k3_old)[-WINDOW:]
        if len(recent) == WINDOW and median(recent) < QUIET:
            return self._at(self.rate * RAISE)
        return replace(self, recent=recent)

    def _at(self, rate: float) -> "LearningRate":
        return replace(self, rate=max(self.least, min(self.most, rate)), recent=())
