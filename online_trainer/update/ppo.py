"""The policy's loss: token-level decoupled PPO with dual clip, its weights and its sum over tokens.

Shapes: B rows, T tokens, N counted tokens or turns; a mask is True where a token counts. Invariant: whatever stands
at a masked place (NaN and infinity too) changes neither a loss nor a gradient, so every input is blanked before use.
`old` is the trainer's policy before the update, `mu` the policy that sampled; both come in without a gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def blank(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Zero where the mask is False. Placed before the arithmetic it also stops a NaN from returning as a gradient."""
    return torch.where(mask_BT, value_BT, torch.zeros((), dtype=value_BT.dtype, device=value_BT.device))


def log_ratio(new_BT: Tensor, old_BT: Tensor) -> Tensor:
    """log new - log old, held within +-20 so that its exponential stays finite."""
    return (new_BT - old_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ppo_dual_clip(
    logprob_BT: Tensor,
    old_BT: Tensor,
    advantage_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> Tensor:
    """Loss per token: -min(rho A, clip(rho, 1-low, 1+high) A), and for A < 0 at most -c A (Schulman 2017, Ye 2019)."""
    ratio_BT = log_ratio(logprob_BT, old_BT).exp()
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_BT = torch.maximum(-ratio_BT * advantage_BT, -clipped_BT * advantage_BT)
    bounded_BT = torch.minimum(loss_BT, -dual_clip * advantage_BT)
    return torch.where(advantage_BT < 0, bounded_BT, loss_BT)


def truncated_weight(old_BT: Tensor, mu_BT: Tensor, *, cap: float) -> Tensor:
    """w = min(pi_old / mu, cap), detached: differentiating it would add log pi * grad w (decoupled PPO, token TIS)."""
    return log_ratio(old_BT, mu_BT).exp().clamp(max=cap).detach()


def token_sum(loss_BT: Tensor, weight_BT: Tensor, mask_BT: Tensor, *, total: float) -> Tensor:
    """sum(weight * loss over counted tokens) / total, with `total` the counted tokens of the WHOLE update.

    A global denominator makes the update independent of how it is cut into micro-batches.
    """
    return (blank(loss_BT, mask_BT) * blank(weight_BT, mask_BT)).sum() / total


def policy_loss(
    logprob_BT: Tensor,
    old_BT: Tensor,
    mu_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    tis_cap: float,
    total: float,
) -> Tensor:
    """sum_i m_i w_i PPOdual(rho_i, A_i) / total (algorithms.md 9.5): the one call that a step makes per micro-batch.

    `advantage_BT` is constant inside a turn and may already carry a rater's cap.
    """
    new, old, mu, advantage = (blank(x, mask_BT) for x in (logprob_BT, old_BT, mu_BT, advantage_BT))
    loss_BT = ppo_dual_clip(new, old, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return token_sum(loss_BT, truncated_weight(old, mu, cap=tis_cap), mask_BT, total=total)


def turn_ratio(logprob_N: Tensor, old_N: Tensor, turn_N: Tensor, *, turns: int) -> Tensor:
    """Length-normalised ratio of each turn, exp(mean log rho) (GSPO, SORL); its product form explodes with length."""
    zero = torch.zeros(turns, dtype=logprob_N.dtype, device=logprob_N.device)
    sum_M = zero.index_add(0, turn_N, log_ratio(logprob_N, old_N))
    count_M = zero.index_add(0, turn_N, torch.ones_like(logprob_N)).clamp(min=1.0)
    return (sum_M / count_M).exp()


def turn_level(logprob_N: Tensor, old_N: Tensor, turn_N: Tensor, *, turns: int) -> Tensor:
    """log-probabilities whose ratio to `old` is their turn's geometric mean: what `ratio_level: turn_geo` puts in the loss.

    Summed over a turn's tokens the gradient is that of its length times the turn's ratio, as with token ratios (GSPO-token).
    """
    return old_N + turn_ratio(logprob_N, old_N, turn_N, turns=turns).log()[turn_N]


def entropy_bonus(
    logp_NV: Tensor, old_N: Tensor, mu_N: Tensor, mask_N: Tensor, *, tis_cap: float, total: float
) -> Tensor:
    """sum_i m_i w_i H(pi(. | i)) / total, with H exact over the vocabulary and w as in the policy's loss."""
    old, mu = blank(old_N, mask_N), blank(mu_N, mask_N)
    entropy_N = -(logp_NV.exp() * logp_NV).nansum(dim=-1)
    return token_sum(entropy_N, truncated_weight(old, mu, cap=tis_cap), mask_N, total=total)


def interpolated_old(mu_BT: Tensor, logprob_BT: Tensor, *, share: float) -> Tensor:
    """A-3PO's stand-in for log pi_old: log mu + share (log pi - log mu), detached; saves the extra forward pass."""
    return (mu_BT + share * (logprob_BT - mu_BT)).detach()


def value_loss(value_N: Tensor, return_N: Tensor) -> Tensor:
    """0.5 (V - G)^2 per state."""
    return 0.5 * (value_N - return_N).square()


def clipped_value_loss(value_N: Tensor, old_N: Tensor, return_N: Tensor, *, clip: float) -> Tensor:
    """0.5 max((V-G)^2, (clip(V, V_old +- e)-G)^2) per state. Off by default: targets here are bounded."""
    near_N = old_N + (value_N - old_N).clamp(-clip, clip)
    return torch.maximum(value_loss(value_N, return_N), value_loss(near_N, return_N))


@dataclass(frozen=True)
class RatioStatistics:
    """Sums over counted tokens, so that micro-batches add up; detached."""

    tokens: int = 0
    clipped: int = 0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    weight_sum: float = 0.0
    weight_square_sum: float = 0.0

    @property
    def clip_fraction(self) -> float:
        """Share of counted tokens whose gradient the clip removed."""
        return self.clipped / self.tokens if self.tokens else 0.0

    @property
    def ess(self) -> float:
        """Effective sample size of the truncated weights over N."""
        return (
            self.weight_sum**2 / (self.tokens * self.weight_square_sum) if self.weight_square_sum > 0 else 0.0
        )

    def plus(self, other: "RatioStatistics") -> "RatioStatistics":
        """The statistics of both batches together."""
        return RatioStatistics(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=max(self.ratio_max, other.ratio_max),
            weight_sum=self.weight_sum + other.weight_sum,
            weight_square_sum=self.weight_square_sum + other.weight_square_sum,
        )


def ratio_statistics(
    logprob_BT: Tensor,
    old_BT: Tensor,
    mu_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    tis_cap: float,
) -> RatioStatistics:
    """How far the ratios went: what the clips removed, and the effective sample size of the weights."""
    new_N, old_N, mu_N, adv_N = (x.detach()[mask_BT] for x in (logprob_BT, old_BT, mu_BT, advantage_BT))
    if not len(new_N):
        return RatioStatistics()
    ratio_N = log_ratio(new_N, old_N).exp()
    high_N = (adv_N > 0) & (ratio_N > 1.0 + clip_high)
    low_N = (adv_N < 0) & ((ratio_N < 1.0 - clip_low) | (ratio_N > dual_clip))
    weight_N = truncated_weight(old_N, mu_N, cap=tis_cap)
    return RatioStatistics(
        tokens=len(new_N),
        clipped=int((high_N | low_N).sum()),
        ratio_sum=float(ratio_N.sum()),
        ratio_max=float(ratio_N.max()),
        weight_sum=float(weight_N.sum()),
        weight_square_sum=float(weight_N.square().sum()),
    )


def effective_share(weight_N: Tensor) -> float:
    """ESS / N = (sum w)^2 / (N sum w^2)."""
    return float(weight_N.sum() ** 2 / (len(weight_N) * weight_N.square().sum()))
