"""Monte-Carlo credit: the discounted return minus a baseline. What is used until the critic is trusted, and its target.

G_t = sum_k gamma^k r_{t+k} (+ gamma^n V after the last turn of an episode that was cut);  A_t = G_t - b_t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from online_trainer.credit.gae import gae
from online_trainer.credit.protocol import Estimate


@dataclass(frozen=True)
class MonteCarlo:
    """The rule at one gamma; `value_EH` serves as the baseline."""

    gamma: float

    def __call__(
        self, reward_EH: Tensor, value_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor
    ) -> Estimate:
        """GAE at lam = 1, which telescopes to return minus baseline."""
        return gae(reward_EH, value_EH, mask_EH=mask_EH, bootstrap_E=bootstrap_E, gamma=self.gamma, lam=1.0)


def returns(reward_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor, gamma: float) -> Tensor:
    """Discounted return from each turn on, return_EH: the critic's Monte-Carlo target."""
    return gae(
        reward_EH,
        torch.zeros_like(reward_EH),
        mask_EH=mask_EH,
        bootstrap_E=bootstrap_E,
        gamma=gamma,
        lam=1.0,
    ).return_EH
