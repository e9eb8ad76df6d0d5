"""A pass over a batch without gradient: what a policy makes of the trained tokens.

N trained tokens, P positions of one pass, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from online_trainer.policy import Policy
from online_trainer.update.batch import Batch, pack, token_positions


@dataclass(frozen=True)
class Look:
    """One pass over a batch without gradient: hidden states and log-probabilities of the trained tokens."""

    hidden_ND: torch.Tensor
    logprob_N: torch.Tensor


@torch.no_grad()
def look(policy: Policy, batch: Batch, *, token_budget: int) -> Look:
    """Hidden states [N, D] at the trained tokens under the weights in force, and their log-probabilities [N]."""
    hidden_ND = torch.zeros((batch.tokens, policy.width))
    logprob_N = torch.zeros(batch.tokens)
    for part in pack(batch.rows, token_positions, token_budget=token_budget):
        hidden_PD = policy.hidden(part).float()
        hidden_ND[part.index_P] = hidden_PD
        logprob_N[part.index_P] = _picked(policy, hidden_PD, batch, part.index_P)
    return Look(hidden_ND, logprob_N)


@torch.no_grad()
def look_at(policy: Policy, hidden_ND: torch.Tensor, batch: Batch, *, chunk: int) -> Look:
    """The same from hidden states that are already known."""
    parts = torch.split(torch.arange(batch.tokens), chunk)
    logprobs = [_picked(policy, hidden_ND[index_P], batch, index_P) for index_P in parts]
    return Look(hidden_ND, torch.cat(logprobs))


def _picked(policy: Policy, hidden_PD: torch.Tensor, batch: Batch, index_P: torch.Tensor) -> torch.Tensor:
    logp_PV = policy.log_softmax(hidden_PD, batch.temperature_N[index_P])
    return logp_PV.gather(1, batch.target_N[index_P, None])[:, 0]
