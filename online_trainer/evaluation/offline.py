"""Estimates from what was logged, and the loss of the method that ours is compared with. N answers.

Invariant: none of it prices a turn for the policy; the doubly robust estimate has 1 / e variance (algorithms.md 9.2).
"""

import torch
from torch import Tensor


def doubly_robust(
    model_N: Tensor, rated_N: Tensor, rating_N: Tensor, *, chance_N: Tensor, floor: float
) -> Tensor:
    """rho + 1[rated] / max(e, floor) (u - rho): its mean is right where either the model or the chance of a rating is."""
    correction_N = (rating_N - model_N) / chance_N.clamp(min=floor)
    return model_N + torch.where(rated_N, correction_N, 0.0)


def kto_value(log_ratio_N: Tensor, up_N: Tensor, *, beta: float, anchor: float) -> Tensor:
    """v = sigma(beta (log pi / pi_ref - z0)) of what people liked, sigma(beta (z0 - log pi / pi_ref)) of the rest
    (arXiv 2402.01306); the loss is w (1 - v)."""
    side_N = torch.where(up_N, 1.0, -1.0)
    return torch.sigmoid(beta * side_N * (log_ratio_N - anchor))
