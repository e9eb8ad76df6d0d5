"""The live line against the frozen holdout, so that small tolerated losses cannot add up. Pure.

The holdout is drawn by user, so a user is one unit: their first outcome in this champion's reign, in whichever arm their
hash put them. "Worse" may only re-point to the anchor; "better" only gives the budget of observed losses back.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deploy.canary.evidence import Real, TwoArm
from deploy.canary.saved import process
from deploy.canary.trial import BURN_IN
from feedback.agent_file import Canary as Settings


@dataclass(frozen=True)
class Anchor:
    """Evidence of one reign; arm 1 is the live line, arm 0 the holdout."""

    reign: int
    worse: TwoArm
    better: TwoArm


def start(reign: int, settings: Settings) -> Anchor:
    """A new champion is compared anew: its people, not its predecessors'."""
    return Anchor(
        reign,
        worse=TwoArm("worse", settings.margin, burn_in=BURN_IN),
        better=TwoArm("better", 0.0, burn_in=BURN_IN),
    )


def took_person(
    anchor: Anchor, live: Real, *, outcome: Real, holdout: float, share: Real, counts: Real = 1.0
) -> Anchor:
    """One person's outcome; `live` is 1 on the champion, 0 held out. `holdout` is the share of users held out, `share` the
    candidate's at that moment. All but `holdout` may be arrays of parallel runs.
    """
    if not 0.0 < holdout < 1.0:
        return anchor
    propensity = live_propensity(holdout, share)
    return Anchor(
        anchor.reign,
        worse=anchor.worse.update(outcome, live, propensity=propensity, counts=counts),
        better=anchor.better.update(outcome, live, propensity=propensity, counts=counts),
    )


def live_propensity(holdout: float, share: Real) -> Real:
    """Chance of the champion's arm among those who are either held out or on the champion."""
    on_champion = (1.0 - holdout) * (1.0 - share)
    return on_champion / (on_champion + holdout)


def is_worse(anchor: Anchor, settings: Settings) -> bool:
    """The champion has lost to the start by more than the margin."""
    return float(anchor.worse.log_e) >= -math.log(settings.guardrailAlpha)


def is_better(anchor: Anchor, settings: Settings) -> bool:
    """The champion is shown to beat the start: earlier small losses are paid back."""
    return float(anchor.better.log_e) >= -math.log(settings.alphaPromote)


def to_json(anchor: Anchor) -> dict[str, Any]:
    """Plain values."""
    return asdict(anchor)


def from_json(fields: Mapping[str, Any]) -> Anchor:
    """The anchor that `to_json` was given."""
    return Anchor(fields["reign"], process(fields["worse"]), process(fields["better"]))
