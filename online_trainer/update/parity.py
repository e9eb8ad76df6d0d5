"""Whether the engine's log-probabilities are the trainer's where both had the same weights (case 39).

Invariant: only turns that the head's own version sampled are compared, before the head moves. Rounding makes .009 nat a
token where the engine runs bfloat16 and 1e-4 where it runs float32 (measured on the desk). N tokens of such turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from feedback.probe import AGREES
from online_trainer.update.kl import k3

MEAN = "sampling/sampling_logp_difference/mean"


@dataclass(frozen=True)
class Parity:
    """log pi - log mu on the tokens that the weights in force sampled; all 0 where there are none."""

    tokens: int = 0
    mean: float = 0.0
    most: float = 0.0
    k3: float = 0.0

    @classmethod
    def of(cls, pi_N: Tensor, mu_N: Tensor) -> Parity:
        """Mean and largest |difference|, and k3(mu || pi), which equal weights make 0."""
        if not len(pi_N):
            return cls()
        apart_N = (pi_N - mu_N).abs()
        return cls(len(pi_N), float(apart_N.mean()), float(apart_N.max()), float(k3(mu_N, pi_N).mean()))

    def measures(self) -> dict[str, float]:
        """Under the names that dashboards know; nothing where nothing was compared."""
        if not self.tokens or not math.isfinite(self.mean):
            return {}
        return {
            MEAN: self.mean,
            "sampling/sampling_logp_difference/max": self.most,
            "sampling/k3": self.k3,
            "sampling/matching_tokens": float(self.tokens),
        }

    def fault(self) -> str | None:
        """Why the engine does not run what the trainer made, or samples otherwise than it says; None if it may."""
        if self.mean <= AGREES:
            return None
        return f"log-probabilities are {self.mean:.3g} nat a token from the engine's on {self.tokens} tokens of equal weights"
