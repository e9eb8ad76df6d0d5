"""Turn-level generalised advantage estimation (Schulman 2016): the credit rule of a trusted critic.

delta_t = r_t + gamma V_{t+1} - V_t;  A_t = sum_l (gamma lam)^l delta_{t+l};  return_t = A_t + V_t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from online_trainer.credit.protocol import Estimate
from online_trainer.update.ppo import blank


@dataclass(frozen=True)
class Gae:
    """The rule at one (gamma, lam)."""

    gamma: float
    lam: float

    def __call__(
        self, reward_EH: Tensor, value_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor
    ) -> Estimate:
        """Advantages and returns of every episode of the batch."""
        return gae(
            reward_EH, value_EH, mask_EH=mask_EH, bootstrap_E=bootstrap_E, gamma=self.gamma, lam=self.lam
        )


@torch.no_grad()
def gae(
    reward_EH: Tensor, value_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor, gamma: float, lam: float
) -> Estimate:
    """Backwards over turns; a padded turn passes on what came after it."""
    reward_EH, value_EH = blank(reward_EH, mask_EH), blank(value_EH, mask_EH)
    next_value_E = bootstrap_E.to(value_EH.dtype)
    carried_E = torch.zeros_like(next_value_E)
    columns: list[Tensor] = []
    for turn in reversed(range(reward_EH.shape[1])):
        counted_E = mask_EH[:, turn]
        delta_E = reward_EH[:, turn] + gamma * next_value_E - value_EH[:, turn]
        carried_E = torch.where(counted_E, delta_E + gamma * lam * carried_E, carried_E)
        next_value_E = torch.where(counted_E, value_EH[:, turn], next_value_E)
        columns.append(blank(carried_E, counted_E))
    advantage_EH = torch.stack(columns[::-1], dim=1)
    return Estimate(advantage_EH, blank(advantage_EH + value_EH, mask_EH))
