"""ProxMO (arXiv 2602.19225): what turns in similar states returned is the baseline, and a rare result weighs a little more.

Invariant: an episode is never compared with itself (leave-self-out), so the baseline knows nothing of its outcome; and a
success rate counts episodes, not turns. E episodes, N turns asked about, R turns of the replay, F features.
"""

import math

import torch
from torch import Tensor

FLAT = 1e-6


def success_weight(success_E: Tensor, rate_E: Tensor, *, alpha: float, most: float) -> Tensor:
    """PSC: w_E = 1 + beta f(R, p), f(1, p) = sigma((1-p)^alpha) - 1/2, f(0, p) = sigma(-(p^alpha)) - 1/2.

    beta makes a success that never happens weigh 1 + most, and a failure where all succeed 1 - most.
    """
    beta = most / (1.0 / (1.0 + math.exp(-1.0)) - 0.5)
    rare_E = torch.where(success_E, (1.0 - rate_E) ** alpha, -(rate_E**alpha))
    return 1.0 + beta * (torch.sigmoid(rare_E) - 0.5)


def similarity(state_NF: Tensor, replay_RF: Tensor) -> Tensor:
    """Cosine [N, R] of states, each feature first centred and scaled over the replay.

    Hidden states share a large common part, which would make all of them alike; the paper's TF-IDF removes it by its IDF.
    """
    mean_F, spread_F = replay_RF.mean(0), replay_RF.std(0, correction=0)
    kept_F = spread_F > FLAT
    state_NF, replay_RF = (
        torch.nn.functional.normalize(((x - mean_F) / spread_F.clamp(min=FLAT))[:, kept_F], dim=1)
        for x in (state_NF, replay_RF)
    )
    return state_NF @ replay_RF.T


def neighbour_weights(similarity_NR: Tensor, *, allowed_NR: Tensor, tau: float) -> Tensor:
    """PSA: W = softmax over the allowed of similarity / tau. A row that may look at nobody is zero."""
    weight_NR = torch.softmax(torch.where(allowed_NR, similarity_NR / tau, -torch.inf), dim=1)
    return torch.where(allowed_NR.any(dim=1, keepdim=True), weight_NR, 0.0)
