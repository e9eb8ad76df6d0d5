"""How large an advantage usually is: a running root mean square over turns. N turns.

Invariant: unless `centred` is asked for nothing is subtracted, so a batch that got worse looks worse; and nothing is divided by the spread of one
small batch, so identical rewards stay finite.
"""

from dataclasses import dataclass

from torch import Tensor

from online_trainer.update.ppo import blank

DECAY = 0.9
FLOOR = 0.05


@dataclass(frozen=True)
class RunningScale:
    """State of the scale: decayed sum of squares and decayed count of turns. Checkpoint both."""

    square_sum: float = 0.0
    count: float = 0.0

    @property
    def value(self) -> float:
        """Root mean square so far (turn-weighted), never below `FLOOR`; 1 before any turn was seen."""
        if self.count == 0.0:
            return 1.0
        return max(FLOOR, float((self.square_sum / self.count) ** 0.5))

    def after(self, advantage_N: Tensor) -> "RunningScale":
        """With one more batch of turns; a batch that is not finite changes nothing."""
        square = float(advantage_N.detach().double().square().sum())
        if not square < float("inf"):
            return self
        return RunningScale(DECAY * self.square_sum + square, DECAY * self.count + advantage_N.numel())


def centred(advantage_EH: Tensor) -> Tensor:
    """Less the mean over turns that have a credit; a turn without one keeps 0."""
    credited_EH = advantage_EH != 0
    mean = advantage_EH.sum() / credited_EH.sum().clamp(min=1)
    return blank(advantage_EH - mean, credited_EH)


def scaled(advantage_N: Tensor, scale: RunningScale, *, clip: float) -> Tensor:
    """A / scale within +-clip."""
    return (advantage_N / scale.value).clamp(-clip, clip)
