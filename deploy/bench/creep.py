"""Whether small tolerated losses add up: lines of candidates that are each one margin worse than the champion they meet.

Every line goes through the same canary, with the budget of observed losses and the holdout's e-process of `anchor`. A round
is one candidate; time stands still for a line whose canary has ended, which can only make its stop look later.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.bench.simulation import PROMOTED, Array, Episodes, Lockstep, World, draw, knowing
from deploy.canary.anchor import Anchor, start, took_person
from deploy.canary.evidence import TwoArm
from feedback.agent_file import Canary as Settings


@dataclass(frozen=True)
class People:
    """Who uses the agent: how many they are, and the share of them that stays on the anchor."""

    count: int = 2_000
    holdout: float = 0.1


@dataclass(frozen=True)
class Crept:
    """Of each line: the deepest its champion was below the anchor, how many candidates won, how often it was taken back."""

    fell: Array
    promoted: Array
    returned: Array

    def quantile(self, q: float) -> float:
        """The fall that a share `q` of the lines stays within."""
        return float(np.quantile(self.fell, q, method="higher"))


class Lines:
    """Many lines in lockstep. `champion` is each one's true success; everybody starts as the anchor."""

    def __init__(self, settings: Settings, people: People, *, anchor: float, lines: int, seed: int) -> None:
        self.settings = settings
        self.champion = np.full(lines, anchor)
        self.spent = np.zeros(lines)
        self.crept = Crept(np.zeros(lines), np.zeros(lines), np.zeros(lines))
        self._anchor = anchor
        self._people = people
        self._generator = np.random.default_rng(seed)
        self._state = start(0, settings)
        self._reigns = np.zeros(lines)
        """1.0 where the champion is not the anchor itself: only then is there something to compare."""

    def try_candidate(self, *, episodes: int) -> None:
        """One candidate a line, one margin below its champion, for at most so many episodes."""
        worse = np.maximum(0.0, self.champion - self.settings.margin)
        world = World((self.champion, worse))
        known = knowing(World((self._anchor, self._anchor)))
        canary = Lockstep(self.settings, known, runs=len(self.champion), allowance=self._allowance())
        for at in range(episodes):
            running, share = canary.live, canary.share
            met = draw(world, share, at=at, generator=self._generator)
            canary.meet(met)
            canary.judge()
            self._compare(met, running=running, share=share)
            self._bring_back(canary)
            canary.allowance = self._allowance()
            if not canary.live.any():
                break
        self._crown(canary, worse)

    def _allowance(self) -> Array:
        return np.asarray(np.maximum(0.0, self.settings.margin - self.spent))

    def _compare(self, met: Episodes, *, running: Array, share: Array) -> None:
        """The first outcome of a person in this reign, on the champion or held out."""
        held = self._people.holdout
        rate = held / (1.0 - held)
        asked = self._generator.random(len(running)) < rate
        outcome = (self._generator.random(len(running)) < self._anchor).astype(float)
        on_champion = running * self._reigns * (1.0 - met.arm) * met.known
        held_out = running * self._reigns * asked
        for live, said, counts in ((1.0, met.outcome, on_champion), (0.0, outcome, held_out)):
            first = self._generator.random(len(running)) < self._unmet(live)
            self._state = took_person(
                self._state, live, outcome=said, holdout=held, share=share, counts=counts * first
            )

    def _unmet(self, live: float) -> Array:
        """Share of an arm's people that have said nothing yet in this reign."""
        held = self._people.holdout
        people = self._people.count * (1.0 - held if live else held)
        met = self._state.worse.n1 if live else self._state.worse.n0
        return np.asarray(1.0 - np.minimum(1.0, np.asarray(met) / people))

    def _bring_back(self, canary: Lockstep) -> None:
        """What the holdout's e-process does: the anchor is champion again, or the budget of losses is whole again."""
        settings = self.settings
        compared = (self._reigns > 0) & (canary.live > 0)
        lost = _reached(self._state.worse, settings.guardrailAlpha) & compared
        better = _reached(self._state.better, settings.alphaPromote) & compared
        self.spent = np.where(better, 0.0, self.spent)
        if lost.any():
            canary.stop(lost, "anchor")
            self.champion = np.where(lost, self._anchor, self.champion)
            self.crept = replace(self.crept, returned=self.crept.returned + lost)
            self._begin_reign(lost, reigns=0.0)

    def _crown(self, canary: Lockstep, worse: Array) -> None:
        """The promoted take over; what they were seen to lose is spent."""
        won = canary.verdict == PROMOTED
        self.spent = self.spent + np.where(won, np.maximum(0.0, canary.loss()), 0.0)
        self.champion = np.where(won, worse, self.champion)
        fell = np.maximum(self.crept.fell, self._anchor - self.champion)
        self.crept = replace(self.crept, fell=fell, promoted=self.crept.promoted + won)
        self._begin_reign(won, reigns=1.0)

    def _begin_reign(self, where: NDArray[np.bool_], *, reigns: float) -> None:
        fresh = start(0, self.settings)
        self._reigns = np.where(where, reigns, self._reigns)
        self._state = Anchor(
            0,
            worse=_renewed(self._state.worse, fresh.worse, where),
            better=_renewed(self._state.better, fresh.better, where),
        )


def creep(
    settings: Settings,
    *,
    lines: int,
    candidates: int,
    episodes: int,
    people: People | None = None,
    anchor: float = 0.7,
    seed: int = 11,
) -> Crept:
    """Let `lines` lines meet `candidates` candidates each, `episodes` of them at most per canary."""
    played = Lines(settings, people or People(), anchor=anchor, lines=lines, seed=seed)
    for _ in range(candidates):
        played.try_candidate(episodes=episodes)
    return played.crept


def _reached(process: TwoArm, alpha: float) -> NDArray[np.bool_]:
    return np.asarray(np.asarray(process.log_e) >= -math.log(alpha))


def _renewed(process: TwoArm, fresh: TwoArm, where: NDArray[np.bool_]) -> TwoArm:
    """Everything it has counted starts again in these lines."""
    now, new = vars(process), vars(fresh)
    counted = now.keys() - {"side", "margin", "burn_in"}
    renewed: dict[str, Any] = {name: np.where(where, new[name], now[name]) for name in counted}
    return replace(process, **renewed)
