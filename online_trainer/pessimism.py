"""Ways to turn several reward models' opinions into one cautious number. K members on the first axis, N answers.

Source: Coste 2023 (worst case, uncertainty-weighted), arXiv 2606.09073 (KL-DRO), arXiv 2502.18770 (PAR).
"""

import math

import torch
from torch import Tensor


def lower_bound(score_KN: Tensor, *, kappa: float) -> Tensor:
    """mean - kappa * std (unbiased): what is believed with caution."""
    return score_KN.mean(0) - kappa * score_KN.std(0, correction=1)


def variance_weighted(score_KN: Tensor, *, weight: float) -> Tensor:
    """UWO: mean - weight * population variance."""
    return score_KN.mean(0) - weight * score_KN.var(0, correction=0)


def worst(score_KN: Tensor) -> Tensor:
    """WCO: the lowest opinion."""
    return score_KN.amin(0)


def distributionally_robust(score_KN: Tensor, *, b: float) -> Tensor:
    """KL-DRO: -b log mean exp(-r / b); the mean as b grows, the worst as b falls."""
    return -b * (torch.logsumexp(-score_KN / b, dim=0) - math.log(score_KN.shape[0]))


def preference_reward(score_N: Tensor, reference_N: Tensor | float, *, temperature: float = 1.0) -> Tensor:
    """PAR, centred: 2 sigma((r - r_ref) / T) - 1 in (-1, 1); adding a constant to every score changes nothing."""
    return 2.0 * torch.sigmoid((score_N - reference_N) / temperature) - 1.0
