"""The measured trust region: what a finished update did to the policy, and whether that is small enough to keep.

Shapes: N counted tokens, V vocabulary, M turns. Invariant: an update is kept only if every measure is finite and within
its limit; every KL that decides is exact over the vocabulary, or an estimator on tokens of the policy it is taken from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median

import torch
from torch import Tensor

from feedback.schemas import Decision
from feedback.training_section import Staleness, Training
from online_trainer.update.kl import k3, kl_of_logprobs, second_moment
from online_trainer.update.measured_gates import Change, Opinions, gain
from online_trainer.update.ppo import RatioStatistics, effective_share, log_ratio, truncated_weight

SINGLE_USER_FACTOR = 0.5
BIG_MOVE = math.log(2.0)
GRADIENT_JUMP = 10.0


@dataclass(frozen=True)
class Measures:
    """One update, measured. KLs in nats: `turn_kl` summed over a turn, the others per token. Gains in stds of the
    judges' scores; of no turns they say nothing."""

    k3_old: float
    k3_mu: float
    kl_ref: float
    m2: float
    turn_kl: float
    big_move_share: float
    ess: float
    clip_fraction: float
    grad_norm: float
    tokens: float
    gold_gain: float = 0.0
    gold_upper: float = 0.0
    gold_turns: float = 0.0
    judge_gain: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """For the Update message and MLflow; only finite values, since a message carries no NaN."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}


@dataclass(frozen=True)
class Limits:
    """The bounds in force: the agent file's, with every KL limit halved for a single user (design 13)."""

    k3_old_stop: float
    k3_old_refuse: float
    k3_mu: float
    kl_ref: float
    m2: float
    turn_kl: float
    big_move_share: float
    ess: float
    clip_fraction: float
    gold_drop: float
    scales: tuple[float, ...]

    @classmethod
    def of(cls, training: Training) -> "Limits":
        """Read from the `training:` section."""
        trust = training.trust
        factor = SINGLE_USER_FACTOR if training.batch.single_user else 1.0
        return cls(
            k3_old_stop=factor * trust.k3_old_stop,
            k3_old_refuse=factor * trust.k3_old_refuse,
            k3_mu=factor * trust.k3_mu_refuse,
            kl_ref=factor * training.kl_reference.hard,
            m2=trust.m2_refuse,
            turn_kl=factor * trust.turn_kl_refuse,
            big_move_share=trust.big_move_share,
            ess=trust.ess_min,
            clip_fraction=trust.clip_fraction_stop,
            gold_drop=math.inf if trust.gold_drop is None else trust.gold_drop,
            scales=trust.backtrack,
        )


@dataclass(frozen=True)
class Moves:
    """What one chunk of counted tokens measured; chunks are concatenated by `measure`. All detached, float64, [N].

    `turn_N` numbers the turns over the WHOLE update, not the chunk.
    """

    kl_old_N: Tensor
    kl_ref_N: Tensor
    k3_mu_N: Tensor
    move_N: Tensor
    weight_N: Tensor
    turn_N: Tensor


@torch.no_grad()
def moves(
    ids_N: Tensor,
    turn_N: Tensor,
    *,
    new_NV: Tensor,
    old_NV: Tensor,
    reference_NV: Tensor,
    mu_N: Tensor,
    tis_cap: float,
) -> Moves:
    """Measure one chunk from log-probabilities [N, V] at the counted positions, of the distribution that was sampled.

    kl_old = KL(old || new) and kl_ref = KL(new || reference) exactly; k3_mu estimates KL(mu || new) on mu's own
    tokens; `weight_N` = min(old / mu, cap) makes those tokens stand for tokens of `old` in M2 and the big moves.
    """
    new_N, old_N = (x.gather(-1, ids_N[:, None])[:, 0].double() for x in (new_NV, old_NV))
    return Moves(
        kl_old_N=kl_of_logprobs(old_NV, new_NV).clamp(min=0.0).double(),
        kl_ref_N=kl_of_logprobs(new_NV, reference_NV).clamp(min=0.0).double(),
        k3_mu_N=k3(mu_N.double(), new_N),
        move_N=new_N - old_N,
        weight_N=truncated_weight(old_N, mu_N.double(), cap=tis_cap),
        turn_N=turn_N,
    )


def measure(
    chunks: Sequence[Moves],
    *,
    statistics: RatioStatistics,
    grad_norm: float,
    opinions: Opinions | None = None,
) -> Measures:
    """Put the chunks of an update together. `statistics` and `grad_norm` come from the steps that made it."""
    joined = {f.name: torch.cat([_column(chunk, f.name) for chunk in chunks]) for f in fields(Moves)}
    weight_N, move_N = joined["weight_N"], joined["move_N"]
    weight = weight_N.sum()
    gold, judged = _gains(opinions, move_N, weight_N, joined["turn_N"])
    return Measures(
        k3_old=float(joined["kl_old_N"].mean()),
        k3_mu=float(joined["k3_mu_N"].mean()),
        kl_ref=float(joined["kl_ref_N"].mean()),
        m2=float(second_moment(move_N, weight_N)),
        turn_kl=float(joined["kl_old_N"].sum()) / joined["turn_N"].bincount().count_nonzero().item(),
        big_move_share=float((weight_N * (move_N.abs() > BIG_MOVE)).sum() / weight),
        ess=effective_share(weight_N),
        clip_fraction=statistics.clip_fraction,
        grad_norm=grad_norm,
        tokens=float(len(weight_N)),
        gold_gain=gold.mean,
        gold_upper=gold.upper,
        gold_turns=float(gold.count),
        judge_gain=judged.mean,
    )


def _gains(
    opinions: Opinions | None, move_N: Tensor, weight_N: Tensor, turn_N: Tensor
) -> tuple[Change, Change]:
    if opinions is None or not bool(torch.isfinite(move_N).all()):
        return Change(), Change()
    moved = {"move_N": move_N, "weight_N": weight_N, "turn_N": turn_N, "episode_M": opinions.episode_M}
    return gain(opinions.gold_M, **moved), gain(opinions.judge_M, **moved)


def _column(chunk: Moves, name: str) -> Tensor:
    value: Tensor = vars(chunk)[name]
    return value


def judge(measures: Measures, limits: Limits) -> tuple[str, ...]:
    """Why this update may not stay; empty means that it may. Reasons read `name value > limit`."""
    if broken := [name for name, value in asdict(measures).items() if not math.isfinite(value)]:
        return tuple(f"non_finite {name}" for name in broken)
    above = (
        ("k3_old", measures.k3_old, limits.k3_old_refuse),
        ("k3_mu", measures.k3_mu, limits.k3_mu),
        ("kl_ref", measures.kl_ref, limits.kl_ref),
        ("m2", measures.m2, limits.m2),
        ("turn_kl", measures.turn_kl, limits.turn_kl),
        ("big_move_share", measures.big_move_share, limits.big_move_share),
    )
    reasons = [f"{name} {value:.3g} > {limit:.3g}" for name, value, limit in above if value > limit]
    if measures.ess < limits.ess:
        reasons.append(f"ess {measures.ess:.3g} < {limits.ess:.3g}")
    if measures.gold_upper < -limits.gold_drop:
        reasons.append(f"gold_upper {measures.gold_upper:.3g} < {-limits.gold_drop:.3g}")
    return tuple(reasons)


def should_stop(k3_old: float, clip_fraction: float, *, limits: Limits) -> str | None:
    """Checked after each minibatch: the reason to end the epoch here, or None. What was done so far is kept."""
    if not math.isfinite(k3_old):
        return "non_finite k3_old"
    if k3_old > limits.k3_old_stop:
        return f"k3_old {k3_old:.3g} > {limits.k3_old_stop:.3g}"
    if clip_fraction > limits.clip_fraction:
        return f"clip_fraction {clip_fraction:.3g} > {limits.clip_fraction:.3g}"
    return None


def wild_gradient(norm: float, recent: Sequence[float]) -> str | None:
    """The reason to skip a step whose gradient norm is not finite or above ten times the median of recent ones."""
    if not math.isfinite(norm):
        return "non_finite grad_norm"
    if recent and norm > (bound := GRADIENT_JUMP * median(recent)):
        return f"grad_norm {norm:.3g} > {bound:.3g}"
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of an update: the scale of the step that stays (0 when refused) and why it was cut."""

    scale: float
    measures: Measures
    reasons: tuple[str, ...]

    @property
    def decision(self) -> Decision:
        """accepted | shrunk | refused."""
        if self.scale == 0.0:
            return Decision.REFUSED
        return Decision.SHRUNK if self.reasons else Decision.ACCEPTED


def backtrack(measure_at: Callable[[float], Measures], limits: Limits) -> Outcome:
    """Try theta_old + s (theta_new - theta_old) for each scale in turn and keep the first that may stay.

    `measure_at(s)` sets the weights and measures them. The reasons are those against the full step. A full step that
    is not finite is refused at once: no share of NaN is a number.
    """
    against: tuple[str, ...] = ()
    for scale in limits.scales:
        measures = measure_at(scale)
        reasons = judge(measures, limits)
        if not reasons:
            return Outcome(scale, measures, against)
        against = against or reasons
        if reasons[0].startswith("non_finite"):
            break
    return Outcome(0.0, measures, against)


def surprise(old_N: Tensor, mu_N: Tensor, turn_N: Tensor, *, turns: int) -> Tensor:
    """sum max(0, log pi_old - log mu) over each turn's tokens, [turns]: how far the head has outgrown its sampler."""
    risen_N = log_ratio(old_N, mu_N).clamp(min=0.0)
    return torch.zeros(turns, dtype=risen_N.dtype, device=risen_N.device).index_add(0, turn_N, risen_N)


def too_far(old_N: Tensor, mu_N: Tensor, turn_N: Tensor, *, turns: int, settings: Staleness) -> Tensor:
    """Turns to drop (True): their surprise exceeds the limit. What the head has abandoned keeps its small weight."""
    return surprise(old_N, mu_N, turn_N, turns=turns) > settings.abandoned_nats
