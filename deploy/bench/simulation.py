"""Plays many canaries at once over synthetic episodes, to say how often and how fast the agent file's settings decide.

Runs advance in lockstep on arrays through the same e-processes; the order of decisions is that of `verdict.judge`, and a
test plays single runs through both and requires the same verdict at the same episode.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deploy.canary.evidence import SRM_BAR, RatioCheck, Real, TwoArm
from deploy.canary.guardrails import count_faults
from deploy.canary.trial import Known, create
from deploy.canary.verdict import MET
from feedback.agent_file import Canary as Settings
from feedback.agent_file import Hold, SetShare

Array = NDArray[np.float64]

RUNNING, PROMOTED, ROLLED_BACK, PAUSED = 0, 1, 2, 3


@dataclass(frozen=True)
class World:
    """Two agents and the people who rate them. Rates are per episode; a pair is (champion, candidate)."""

    success: tuple[Real, Real]
    reacts: float = 1.0
    """Share of episodes that have an outcome."""
    wrong: float = 0.0
    """Share of outcomes that say the opposite of the truth."""
    thumb: float = 0.0
    """Share of outcomes that are thumbs."""
    invalid: tuple[float, float] = (0.03, 0.03)
    swing: float = 0.0
    """Amplitude of a sine on both arms' success."""
    period: float = 500.0
    quality: float = 0.0
    """Spread of sticky users: success is drawn per unit from a Beta with this many pseudo-counts (0: none)."""
    ratings: int = 0
    """Ratings a unit's outcome is the mean of (0: one bit)."""


@dataclass(frozen=True)
class Episodes:
    """One episode of every run: arm, what was observed, and which guardrails it tripped."""

    arm: Array
    known: Array
    outcome: Array
    thumbed: Array
    faults: Mapping[str, Array]


@dataclass(frozen=True)
class Played:
    """How each run ended (RUNNING: it did not), after how many units and candidate episodes."""

    verdict: NDArray[np.int64]
    units: Array
    hit: Array
    episodes: Array
    by: dict[str, int]

    def rate(self, verdict: int) -> float:
        """Share of runs with this verdict."""
        return float(np.mean(self.verdict == verdict))

    def units_to(self, verdict: int) -> float:
        """Median units, runs without this verdict counted as endless."""
        return float(np.median(np.where(self.verdict == verdict, self.units, np.inf)))

    def hit_quantile(self, q: float) -> float:
        """Candidate episodes met before the roll-back, endless where there was none."""
        return float(np.quantile(np.where(self.verdict == ROLLED_BACK, self.hit, np.inf), q, method="higher"))


def draw(world: World, share: Array, *, at: int, generator: np.random.Generator) -> Episodes:
    """The next episode of every run."""
    runs = share.shape
    arm = (generator.random(runs) < share).astype(float)
    truth = np.where(arm == 1.0, world.success[1], world.success[0])
    truth = truth + world.swing * math.sin(2 * math.pi * at / world.period)
    if world.quality:
        truth = generator.beta(world.quality * truth, world.quality * (1 - truth))
    says = truth * (1 - world.wrong) + (1 - truth) * world.wrong
    if world.ratings:
        outcome = generator.binomial(world.ratings, says) / world.ratings
    else:
        outcome = (generator.random(runs) < says).astype(float)
    faults = {
        name: (generator.random(runs) < np.where(arm == 1.0, pair[1], pair[0])).astype(float)
        for name, pair in fault_rates(world).items()
    }
    known = (generator.random(runs) < world.reacts).astype(float)
    thumbed = known * (generator.random(runs) < world.thumb)
    return Episodes(arm, known, outcome, thumbed, faults)


def fault_rates(world: World) -> Mapping[str, tuple[float, float]]:
    """How often an episode of the champion and of the candidate has each fault."""
    return {
        "request_error": (0.01, 0.01),
        "invalid_tool_call": world.invalid,
        "clarifying_question": (0.02, 0.02),
        "latency": (0.05, 0.05),
        "length": (0.1, 0.1),
    }


class Lockstep:
    """All runs of one setting. `live` is 1.0 for runs without a verdict; a finished run counts nothing more.

    `allowance` is how much lower an observed mean may be promoted; left out it is the margin.
    """

    def __init__(
        self, settings: Settings, known: Known, *, runs: int, allowance: Array | None = None
    ) -> None:
        start = create("cn_0", "simulated-000001", settings=settings, known=known)
        zeros = np.zeros(runs)
        self.settings = settings
        self.worse, self.better, self.thumbs = (
            replace(each, log_e=zeros, peak=zeros, n0=zeros, n1=zeros)
            for each in (start.worse, start.better, start.thumbs)
        )
        self.guardrails: dict[str, TwoArm] = {
            name: replace(each, log_e=zeros, peak=zeros, n0=zeros, n1=zeros)
            for name, each in start.guardrails.items()
        }
        shares = sorted({step.setShare for step in settings.steps if isinstance(step, SetShare)})
        self.assignment = {share: RatioCheck(share, n0=zeros, n1=zeros, log_bf=zeros) for share in shares}
        self.reaction = dict(self.assignment)
        self.allowance = np.full(runs, settings.margin) if allowance is None else allowance
        self.live = np.ones(runs)
        self.step = np.zeros(runs, dtype=np.int64)
        self.share = zeros
        self.hit = zeros
        self.verdict = np.zeros(runs, dtype=np.int64)
        self.episodes = zeros
        self.by: dict[str, int] = {}
        self._walk()

    def meet(self, episodes: Episodes) -> None:
        """One episode of every live run reaches its cut-off."""
        arm, share, live = episodes.arm, self.share, self.live
        counted = live * episodes.known
        self.episodes = self.episodes + live
        self.hit = self.hit + live * arm
        self.guardrails = count_faults(
            self.guardrails, dict(episodes.faults), arm=arm, propensity=share, counts=live
        )
        self.worse = self.worse.update(episodes.outcome, arm, propensity=share, counts=counted)
        self.better = self.better.update(episodes.outcome, arm, propensity=share, counts=counted)
        if episodes.thumbed.any():
            self.thumbs = self.thumbs.update(
                episodes.outcome, arm, propensity=share, counts=live * episodes.thumbed
            )
        self.assignment = _count(self.assignment, arm, share=share, counts=live)
        self.reaction = _count(self.reaction, arm, share=share, counts=counted)

    def judge(self) -> None:
        """The rules of `verdict.judge`, in its order: harm, doubt, steps, proof. A pause ends a run here."""
        settings = self.settings
        self._end(_reached(self.worse.log_e, settings.alphaRollback), ROLLED_BACK, "worse")
        self._end(_reached(self.thumbs.log_e, settings.guardrailAlpha), ROLLED_BACK, "thumbs")
        for name, process in self.guardrails.items():
            met = np.asarray(process.n1) >= MET
            self._end(_reached(process.log_e, settings.guardrailAlpha) & met, ROLLED_BACK, name)
        self._end(_reached(_total(self.assignment), SRM_BAR), PAUSED, "assignment_srm")
        self._end(_reached(_total(self.reaction), SRM_BAR), PAUSED, "rated_srm")
        self._walk()
        needed = max((step.hold.units for step in settings.steps if isinstance(step, Hold)), default=1)
        proven = _reached(self.better.log_e, settings.alphaPromote) & (self.step == len(settings.steps) - 1)
        enough = np.minimum(self.better.n0, self.better.n1) >= needed
        self._end(proven & enough & (self.loss() <= self.allowance), PROMOTED, "better")

    def loss(self) -> Array:
        """How far the candidate's observed mean lies below the champion's."""
        n0, n1 = np.maximum(self.worse.n0, 1), np.maximum(self.worse.n1, 1)
        return np.asarray(self.worse.total0 / n0 - self.worse.total1 / n1)

    def stop(self, where: NDArray[np.bool_], cause: str) -> None:
        """End these runs from outside."""
        self._end(where, ROLLED_BACK, cause)

    def played(self) -> Played:
        """What came of it."""
        units = np.asarray(self.worse.n0 + self.worse.n1)
        return Played(self.verdict, units, self.hit, self.episodes, self.by)

    def _end(self, reached: NDArray[np.bool_], verdict: int, cause: str) -> None:
        now = np.asarray(reached) & (self.live > 0)
        if now.any():
            self.by[cause] = self.by.get(cause, 0) + int(now.sum())
            self.verdict = np.where(now, verdict, self.verdict)
            self.live = np.where(now, 0.0, self.live)

    def _walk(self) -> None:
        for index, step in enumerate(self.settings.steps[:-1]):
            leaves = (self.step == index) & (self.live > 0)
            if isinstance(step, Hold):
                leaves &= np.asarray(self.worse.n1) >= step.hold.units
            elif isinstance(step, SetShare):
                self.share = np.where(leaves, step.setShare, self.share)
            self.step = np.where(leaves, index + 1, self.step)


def play(
    world: World,
    settings: Settings,
    *,
    runs: int,
    episodes: int,
    seed: int,
    known: Known | None = None,
) -> Played:
    """Play `runs` canaries for at most `episodes` each. `known` is what the champion's past said (default: the truth)."""
    generator = np.random.default_rng(seed)
    lockstep = Lockstep(settings, known or knowing(world), runs=runs)
    for at in range(episodes):
        lockstep.meet(draw(world, lockstep.share, at=at, generator=generator))
        lockstep.judge()
        if not lockstep.live.any():
            break
    return lockstep.played()


def knowing(world: World) -> Known:
    """What a champion with a long past is known for."""
    says = float(world.success[0] * (1 - world.wrong) + (1 - world.success[0]) * world.wrong)
    clean = {name: 1 - champions for name, (champions, _) in fault_rates(world).items()}
    return Known(says, clean)


def _count(
    checks: Mapping[float, RatioCheck], arm: Array, *, share: Array, counts: Array
) -> dict[float, RatioCheck]:
    return {at: check.update(arm, counts=counts * (share == at)) for at, check in checks.items()}


def _total(checks: Mapping[float, RatioCheck]) -> Array:
    return np.asarray(sum(np.asarray(check.log_bf) for check in checks.values()))


def _reached(log_e: object, alpha: float) -> NDArray[np.bool_]:
    return np.asarray(log_e, dtype=float) >= -math.log(alpha)
