"""Metrics of credit against the truth (algorithms.md 12): signs, error, and whether the turns that matter stand out.

Shapes: E episodes with weights that sum to one, H turns; `key_H` is True at the turns that matter. A mean is a weighted
mean, so the same functions serve enumerated and sampled episodes.
"""

import torch
from torch import Tensor


def sign_agreement(advantage_EH: Tensor, truth_EH: Tensor, *, key_H: Tensor, weight_E: Tensor) -> float:
    """Share of key turns whose credit has the sign of the true one; no credit agrees with nothing."""
    agrees_EH = advantage_EH.sign() == truth_EH.sign()
    return float(weight_E @ agrees_EH[:, key_H].double().mean(dim=1))


def normalised_error(advantage_EH: Tensor, truth_EH: Tensor, *, weight_E: Tensor) -> float:
    """NMSE = E ||A - A*||^2 / E ||A*||^2."""
    error = weight_E @ (advantage_EH - truth_EH).square().sum(dim=1)
    return float(error / (weight_E @ truth_EH.square().sum(dim=1)))


def key_mass(advantage_EH: Tensor, *, key_H: Tensor, weight_E: Tensor) -> float:
    """Mean share of an episode's absolute credit that its key turns hold; 0 for an episode without credit."""
    size_EH = advantage_EH.abs()
    total_E = size_EH.sum(dim=1)
    share_E = torch.where(total_E > 0, size_EH[:, key_H].sum(dim=1) / total_E, torch.zeros_like(total_E))
    return float(weight_E @ share_E)


def turn_variance(advantage_EH: Tensor, turn: int, *, weight_E: Tensor) -> float:
    """Variance of one turn's credit over episodes."""
    value_E = advantage_EH[:, turn]
    return float(weight_E @ value_E.square() - (weight_E @ value_E) ** 2)


def key_auroc(advantage_EH: Tensor, *, key_H: Tensor, weight_E: Tensor) -> float:
    """P(|A| at a key turn > |A| at another turn of the same episode), ties one half: .5 for a broadcast return."""
    size_EH = advantage_EH.abs()
    key_EK1, other_E1O = size_EH[:, key_H][:, :, None], size_EH[:, ~key_H][:, None, :]
    wins_EKO = (key_EK1 > other_E1O).double() + 0.5 * (key_EK1 == other_E1O).double()
    return float(weight_E @ wins_EKO.mean(dim=(1, 2)))


def precision_at_keys(advantage_EH: Tensor, *, key_H: Tensor, weight_E: Tensor) -> float:
    """Mean share of key turns among the |K| turns with the largest absolute credit."""
    keys = int(key_H.sum())
    top_EK = advantage_EH.abs().topk(keys, dim=1).indices
    return float(weight_E @ key_H[top_EK].double().mean(dim=1))
