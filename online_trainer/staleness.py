"""What is too old for the policy; it may still train the reward model and the critic.

Invariant (I9): an experience for which this gives a reason never reaches the policy's loss.
"""

from feedback.training_section import Staleness


def stale_reason(*, lag: int, update_lag: int, age_s: float, settings: Staleness) -> str | None:
    """`lag` counts offered versions and `update_lag` accepted updates since the one that sampled it."""
    if lag > settings.max_lag:
        return "stale_version"
    if update_lag > settings.max_update_lag:
        return "stale_updates"
    if age_s > settings.max_age_s:
        return "stale_age"
    return None
