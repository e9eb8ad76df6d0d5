"""When learning stops by itself: a NaN, or too many refusals in a row; it re-arms after a while (design 13).

Time is an argument, in milliseconds. The state is in the checkpoint.
"""

from dataclasses import dataclass, replace

from feedback.schemas import Decision
from feedback.training_section import Trust


@dataclass(frozen=True)
class Pause:
    """Refusals in a row, and until when nothing is trained."""

    refusals: int = 0
    until_ms: int = 0

    def active(self, now_ms: int) -> bool:
        """Whether learning rests now."""
        return now_ms < self.until_ms

    def after(self, decision: Decision, reasons: tuple[str, ...], *, now_ms: int, settings: Trust) -> "Pause":
        """One more update. Pausing starts the count anew, so that the re-armed trainer gets its whole allowance."""
        if decision is not Decision.REFUSED:
            return replace(self, refusals=0)
        broken = any(reason.startswith("non_finite") for reason in reasons)
        if broken or self.refusals + 1 >= settings.refusals_pause:
            return Pause(0, now_ms + int(1000 * settings.pause_retry_s))
        return replace(self, refusals=self.refusals + 1)
