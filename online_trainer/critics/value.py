"""The V-critic: small heads over the reference's frozen hidden states, cross-fitted in five folds by episode.

Invariant: an episode is valued by the member of its own fold, which never learned from that episode. So the baseline
does not know the outcome it is subtracted from, and explained variance is cross-validated without a second training.
Shapes: N turns, F features, K folds, H hidden units; two heads per fold.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feedback.training_section import CriticSettings
from online_trainer.heads import Heads
from online_trainer.update.ppo import value_loss

FOLDS = 5
HEADS = 2
MAX_PARAMETERS = 1_000_000


def fold_of(episode_id: str) -> int:
    """The fold of an episode, the same for ever."""
    return int.from_bytes(hashlib.sha256(episode_id.encode()).digest()[:4]) % FOLDS


def value_heads(hidden_size: int, side_size: int, *, units: int, generator: torch.Generator) -> Heads:
    """K x 2 heads within `MAX_PARAMETERS`, which start at zero."""
    members, features = FOLDS * HEADS, hidden_size + side_size
    fitting = MAX_PARAMETERS // (members * (features + 2)) - 1
    return Heads(
        members,
        hidden_size,
        side_size=side_size,
        units=max(8, min(units, fitting)),
        start=0.0,
        generator=generator,
    )


def by_fold(output_MN: Tensor) -> Tensor:
    """value_KHN: every fold's two heads on every turn."""
    return output_MN.view(FOLDS, HEADS, -1)


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
    """Heads and their optimizer. Checkpoint by `state` / `load`; replay is the caller's."""

    def __init__(self, hidden_size: int, side_size: int, *, settings: CriticSettings, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.heads = value_heads(hidden_size, side_size, units=settings.hidden, generator=self._generator)
        self.optimizer = torch.optim.AdamW(self.heads.parameters(), lr=settings.lr, weight_decay=0.01)

    def learn(self, feature_NF: Tensor, return_N: Tensor, *, episode_ids: Sequence[str]) -> float:
        """One step towards Monte-Carlo returns. Returns the loss before the step.

        A loss that is not finite leaves everything as it was.
        """
        value_KHN = by_fold(self.heads(feature_NF, self._generator))
        loss = cross_fit_loss(value_KHN, return_N, _folds(episode_ids, feature_NF.device))
        if not bool(torch.isfinite(loss)):
            return float(loss.detach())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.heads.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def values(self, feature_NF: Tensor, *, episode_ids: Sequence[str]) -> Tensor:
        """value_N: mean of the two heads of each episode's own fold."""
        fold_N = _folds(episode_ids, feature_NF.device)
        return own_fold(by_fold(self.heads(feature_NF)), fold_N).mean(0)

    def state(self) -> dict[str, Any]:
        """A copy of everything a checkpoint needs, for torch.save; further learning does not touch it."""
        return copy.deepcopy(
            {
                "heads": self.heads.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "generator": self._generator.get_state(),
            }
        )

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether `state` is of heads over as many features as these."""
        theirs: Tensor = state["heads"]["inner"]
        return theirs.shape == self.heads.inner.shape

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._generator.set_state(state["generator"])


def _folds(episode_ids: Sequence[str], device: torch.device) -> Tensor:
    return torch.tensor([fold_of(e) for e in episode_ids], dtype=torch.long, device=device)
