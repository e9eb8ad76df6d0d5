"""From turns to tokens: every sampled token carries the advantage of its turn. B rows, T tokens, N turns of the batch."""

import torch
from torch import Tensor


def spread(value_N: Tensor, turn_BT: Tensor) -> Tensor:
    """value_BT: the value of the turn that sampled each token, 0 where `turn_BT` is -1 (prompt, tool, padding)."""
    gathered_BT = value_N[turn_BT.clamp(min=0)]
    return torch.where(turn_BT >= 0, gathered_BT, torch.zeros_like(gathered_BT))
