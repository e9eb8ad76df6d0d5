"""The V-critic: small heads over the reference's frozen hidden states, cross-fitted in five folds by episode.

Invariant: an episode is valued by the member of its own fold, which never learned from that episode. So the baseline
does not know the outcome it is subtracted from, and explained variance is cross-validated without a second training.
Shapes: N turns, F features, K folds, H hidden units; two heads per fold.
"""

import copy
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feedback.training_section import CriticSettings
from online_trainer.ppo import value_loss

FOLDS = 5
HEADS = 2
MAX_PARAMETERS = 1_000_000


def fold_of(episode_id: str) -> int:
    """The fold of an episode, the same for ever."""
    return int.from_bytes(hashlib.sha256(episode_id.encode()).digest()[:4]) % FOLDS


class ValueHeads(nn.Module):
    """K x 2 independent two-layer heads, evaluated together. The output starts at zero.

    The first `hidden_size` features are a hidden state and are layer-normalised; the rest are side facts as they are.
    """

    def __init__(self, hidden_size: int, side_size: int, *, units: int, generator: torch.Generator) -> None:
        super().__init__()
        members, features = FOLDS * HEADS, hidden_size + side_size
        units = max(8, min(units, MAX_PARAMETERS // (members * (features + 2)) - 1))
        scale = features**-0.5
        self.hidden_size = hidden_size
        self.inner = nn.Parameter(torch.randn(members, features, units, generator=generator) * scale)
        self.inner_bias = nn.Parameter(torch.zeros(members, 1, units))
        self.outer = nn.Parameter(torch.zeros(members, units, 1))
        self.outer_bias = nn.Parameter(torch.zeros(members, 1, 1))

    def forward(self, feature_NF: Tensor) -> Tensor:
        """value_KHN: every fold's two heads on every turn."""
        hidden_ND = nn.functional.layer_norm(feature_NF[:, : self.hidden_size], (self.hidden_size,))
        input_NF = torch.cat([hidden_ND, feature_NF[:, self.hidden_size :]], dim=-1)
        unit_MNU = torch.tanh(input_NF @ self.inner + self.inner_bias)
        value_MN = (unit_MNU @ self.outer + self.outer_bias)[..., 0]
        return value_MN.view(FOLDS, HEADS, -1)


def own_fold(value_KHN: Tensor, fold_N: Tensor) -> Tensor:
    """value_HN: each turn as its own fold's member sees it."""
    index_1HN = fold_N.expand(1, value_KHN.shape[1], -1)
    return value_KHN.gather(0, index_1HN).squeeze(0)


def cross_fit_loss(value_KHN: Tensor, return_N: Tensor, fold_N: Tensor) -> Tensor:
    """Mean 0.5 (V - G)^2 over every member and every turn that is not of its fold."""
    other_KN = torch.arange(FOLDS, device=fold_N.device)[:, None] != fold_N
    loss_KHN = value_loss(value_KHN, return_N)
    return (loss_KHN * other_KN[:, None]).sum() / (HEADS * other_KN.sum().clamp(min=1))


@torch.no_grad()
def polyak(target: Tensor, source: Tensor, *, tau: float) -> Tensor:
    """target + tau (source - target)."""
    return target + tau * (source - target)


class Critic:
    """Heads, their slow target and the optimizer. Checkpoint by `state` / `load`; replay is the caller's."""

    def __init__(self, hidden_size: int, side_size: int, *, settings: CriticSettings, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.heads = ValueHeads(hidden_size, side_size, units=settings.hidden, generator=generator)
        self.target = copy.deepcopy(self.heads).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.heads.parameters(), lr=settings.lr, weight_decay=0.01)
        self._polyak = settings.polyak

    def learn(self, feature_NF: Tensor, return_N: Tensor, *, episode_ids: Sequence[str]) -> float:
        """One step towards Monte-Carlo returns; the target follows. Returns the loss before the step.

        A loss that is not finite leaves everything as it was.
        """
        loss = cross_fit_loss(self.heads(feature_NF), return_N, _folds(episode_ids, feature_NF.device))
        if not bool(torch.isfinite(loss)):
            return float(loss.detach())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.heads.parameters(), 1.0)
        self.optimizer.step()
        for slow, fast in zip(self.target.parameters(), self.heads.parameters(), strict=True):
            slow.copy_(polyak(slow, fast, tau=self._polyak))
        return float(loss.detach())

    @torch.no_grad()
    def values(self, feature_NF: Tensor, *, episode_ids: Sequence[str]) -> Tensor:
        """value_N: mean of the two heads of each episode's own fold."""
        return own_fold(self.heads(feature_NF), _folds(episode_ids, feature_NF.device)).mean(0)

    @torch.no_grad()
    def spread(self, feature_NF: Tensor, *, episode_ids: Sequence[str]) -> Tensor:
        """|V1 - V2| per turn: how unsure the critic is."""
        value_HN = own_fold(self.heads(feature_NF), _folds(episode_ids, feature_NF.device))
        return (value_HN[0] - value_HN[1]).abs()

    @torch.no_grad()
    def bootstrap(self, feature_NF: Tensor, *, episode_ids: Sequence[str]) -> Tensor:
        """value_N by the slow target: what an episode that was cut short may still expect."""
        return own_fold(self.target(feature_NF), _folds(episode_ids, feature_NF.device)).mean(0)

    def state(self) -> dict[str, object]:
        """Everything a checkpoint needs, for torch.save."""
        return {
            "heads": self.heads.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, object]) -> None:
        """The inverse of `state`."""
        self.heads.load_state_dict(state["heads"])  # type: ignore[arg-type]
        self.target.load_state_dict(state["target"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]


def _folds(episode_ids: Sequence[str], device: torch.device) -> Tensor:
    return torch.tensor([fold_of(e) for e in episode_ids], dtype=torch.long, device=device)
