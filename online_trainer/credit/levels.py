"""Two-level credit: how an episode went against its kind, and how each of its turns went against turns like it.

A_t = w (G_0 - b_0) + omega (G_t - b_t), with G the discounted return and b the value that is passed in. ProxMO
(arXiv 2602.19225) and GiGPO (arXiv 2505.10978) differ in where b comes from and in w. Neither divides by a spread:
the running scale does. Invariant: a turn without a counterpart gets the episode's part alone.
"""

from dataclasses import dataclass

from torch import Tensor

from online_trainer.credit.gae import gae
from online_trainer.credit.protocol import Estimate
from online_trainer.update.ppo import blank


@dataclass(frozen=True, eq=False)
class TwoLevels:
    """The rule for one batch. `weight_E` is w, 0 where the outcome is unknown; `work_EH` the turns that the episode's part
    is for; `compared_EH` those with a counterpart."""

    gamma: float
    omega: float
    weight_E: Tensor
    work_EH: Tensor
    compared_EH: Tensor

    def __call__(
        self, reward_EH: Tensor, value_EH: Tensor, *, mask_EH: Tensor, bootstrap_E: Tensor
    ) -> Estimate:
        """Monte-Carlo on both levels."""
        plain = gae(reward_EH, value_EH, mask_EH=mask_EH, bootstrap_E=bootstrap_E, gamma=self.gamma, lam=1.0)
        whole_E = self.weight_E.to(reward_EH.dtype) * plain.advantage_EH[:, 0]
        whole_EH = blank(whole_E[:, None].expand_as(reward_EH), self.work_EH & mask_EH)
        step_EH = blank(plain.advantage_EH, self.compared_EH & mask_EH)
        return Estimate(whole_EH + self.omega * step_EH, plain.return_EH)
