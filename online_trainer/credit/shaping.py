"""Potential-based shaping (Ng, Harada, Russell 1999): what the progress channel may pay, and a tripwire for what it may not.

F_t = gamma Phi(h_t+1) - Phi(h_t) with Phi(end) = 0 telescopes to -Phi(h_0), so no policy gains by it in the end.
Invariant: Phi is a share of sub-goals; progress that no Phi in [0, 1] explains is a farmed bonus and is not paid.
"""

from collections.abc import Sequence

TOLERANCE = 1e-6


def potentials(progress: Sequence[float], *, gamma: float) -> list[float]:
    """Phi before each turn, recovered from F backwards: Phi(h_t) = gamma Phi(h_t+1) - F_t."""
    found: list[float] = []
    following = 0.0
    for gain in reversed(progress):
        following = gamma * following - gain
        found.append(following)
    return found[::-1]


def is_farmed(progress: Sequence[float], *, gamma: float) -> bool:
    """Whether these gains are no shaping: a bonus per call, a forgotten Phi(end) = 0, another gamma, a Phi that moved."""
    slack = TOLERANCE * (1 + len(progress))
    return not all(-slack <= phi <= 1.0 + slack for phi in potentials(progress, gamma=gamma))
