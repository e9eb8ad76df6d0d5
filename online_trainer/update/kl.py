"""KL divergences: estimators on sampled tokens, the exact sum over the vocabulary, the reference loss, the adaptive beta.

Shapes: B rows, T tokens, N counted tokens, V vocabulary. Invariant: the first argument is the policy whose KL is taken
*from*; an estimator (k1, k2, k3) is right only on tokens which that first policy sampled, or weighted to be so. On
other tokens use `exact_kl`. Source: Schulman's note; arXiv 2510.01555 for what each does as a loss.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feedback.training_section import KlReference
from online_trainer.update.ppo import blank, log_ratio, token_sum, truncated_weight

STEP_LIMIT = 0.2


def k1(logprob_BT: Tensor, other_BT: Tensor) -> Tensor:
    """log p - log q per token: unbiased, noisy, may be negative; as a loss it does nothing."""
    return logprob_BT - other_BT


def k2(logprob_BT: Tensor, other_BT: Tensor) -> Tensor:
    """(log p - log q)^2 / 2 per token: biased; as a loss it has exactly the gradient of KL(p || q)."""
    return 0.5 * (logprob_BT - other_BT).square()


def k3(logprob_BT: Tensor, other_BT: Tensor) -> Tensor:
    """r - 1 - log r with r = q / p per token: unbiased, never negative; as a loss it follows KL(q || p)."""
    log_r_BT = log_ratio(other_BT, logprob_BT)
    return torch.expm1(log_r_BT) - log_r_BT


def exact_kl(logits_p_NV: Tensor, logits_q_NV: Tensor) -> Tensor:
    """KL(p || q) per position, summed over the vocabulary; differentiable in both. Last axis is the vocabulary.

    KL(old || new) is `exact_kl(old, new)`; KL(policy || reference) is `exact_kl(policy, reference)`.
    """
    return kl_of_logprobs(torch.log_softmax(logits_p_NV, dim=-1), torch.log_softmax(logits_q_NV, dim=-1))


def kl_of_logprobs(logp_NV: Tensor, logq_NV: Tensor) -> Tensor:
    """`exact_kl` where the log-softmax is already taken; a token that p never takes adds nothing."""
    term_NV = logp_NV.exp() * (logp_NV - logq_NV)
    return torch.where(logp_NV == -torch.inf, torch.zeros_like(term_NV), term_NV).sum(dim=-1)


def k2_loss(
    logprob_BT: Tensor,
    reference_BT: Tensor,
    old_BT: Tensor,
    mu_BT: Tensor,
    mask_BT: Tensor,
    *,
    tis_cap: float,
    total: float,
) -> Tensor:
    """sum_i m_i w_i sg[rho_i] k2_i / total (algorithms.md 9.5); times beta it is the pull to the reference.

    The detached weight w rho, about pi / mu, makes tokens that mu sampled stand for those of the policy itself.
    """
    new, reference, old, mu = (blank(x, mask_BT) for x in (logprob_BT, reference_BT, old_BT, mu_BT))
    weight_BT = truncated_weight(old, mu, cap=tis_cap) * log_ratio(new, old).exp().detach()
    return token_sum(k2(new, reference), weight_BT, mask_BT, total=total)


def second_moment(move_N: Tensor, weight_N: Tensor) -> Tensor:
    """M2 = weighted mean of (log new - log old)^2: signs cannot cancel in it (arXiv 2510.01161)."""
    return (weight_N * move_N.square()).sum() / weight_N.sum()


@dataclass(frozen=True)
class AdaptiveBeta:
    """Coefficient of the KL to the reference; a proportional controller (Ziegler 2019). Checkpoint it by `beta`."""

    beta: float
    beta_min: float
    beta_max: float
    target: float
    horizon: int

    @classmethod
    def start(cls, settings: KlReference) -> "AdaptiveBeta":
        """At the agent file's beta; target in nats per token, horizon in episodes."""
        return cls(settings.beta, settings.beta_min, settings.beta_max, settings.target, settings.horizon)

    def after(self, kl: float, episodes: int) -> "AdaptiveBeta":
        """beta (1 + e n / horizon) with e = clip(kl / target - 1, +-.2), inside its bounds."""
        error = max(-STEP_LIMIT, min(STEP_LIMIT, kl / self.target - 1.0))
        moved = self.beta * (1.0 + error * episodes / self.horizon)
        return replace(self, beta=max(self.beta_min, min(self.beta_max, moved)))
