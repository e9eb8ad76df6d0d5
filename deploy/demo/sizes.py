"""How long each form of the demo runs. Pure: the machine and the options in, numbers out.

Sizes follow from the measured rate of episodes beside training (tests/benchmarks/results.md), so that the stated
times hold on both kinds of machine.
"""

from dataclasses import dataclass, replace

from deploy.simulation.pool import Crowd
from deploy.simulation.users import Habits

CROWD = Crowd(users=120, talking=16, habits=Habits(thinks_s=(2.0, 6.0)))
"""People read and type. So 16 of them leave the trainer enough of two cores to learn from nearly all that they say."""

HURRIED = Crowd(users=120, talking=16)

SLOW = 1.7
"""How much longer the stages may take on a machine without bf16 units."""


@dataclass(frozen=True)
class Sizes:
    """Bounds of the stages; seconds are wall clock."""

    rated: int
    """Stop learning after so many rated episodes …"""
    learn_s: float
    """… or after this long."""
    promotions: int
    """Learning goes on until so many versions were promoted on evidence, as far as three quarters of the time go."""
    trial_s: float
    """How long the last trials may take."""
    heldout_tasks: int
    samples: int
    curve_points: int
    heldout_s: float
    """Expected time of all held-out evaluations, for the display."""
    crowd: Crowd = CROWD
    short: bool = False
    """Once round, its canary ended by hand, nothing sabotaged."""


SHORT = Sizes(
    rated=10_000, learn_s=200, promotions=1, trial_s=12, heldout_tasks=20, samples=1, curve_points=0, heldout_s=60,
    crowd=HURRIED, short=True,
)  # fmt: skip
STANDARD = Sizes(
    rated=900,
    learn_s=930,
    promotions=1,
    trial_s=420,
    heldout_tasks=200,
    samples=1,
    curve_points=2,
    heldout_s=240,
)
LONG = Sizes(
    rated=2000,
    learn_s=2500,
    promotions=2,
    trial_s=600,
    heldout_tasks=200,
    samples=3,
    curve_points=4,
    heldout_s=900,
)


def choose_sizes(*, short: bool, long: bool, has_bfloat16: bool) -> Sizes:
    """The demo's form on this kind of machine. ValueError when both forms are asked for."""
    if short and long:
        raise ValueError("--short and --long exclude each other")
    if short:
        return SHORT
    chosen = LONG if long else STANDARD
    if has_bfloat16:
        return chosen
    return replace(
        chosen,
        learn_s=chosen.learn_s * SLOW,
        trial_s=chosen.trial_s * SLOW,
        heldout_s=chosen.heldout_s * SLOW,
    )
