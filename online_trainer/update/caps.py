"""How much one rater or one episode may weigh in an update.

Invariant: after the factors are applied no rater and no episode holds more than its share of what is left; weight above
a cap is dropped, never handed to others. E episodes, by position.
"""

from collections.abc import Sequence

from feedback.training_section import BatchSettings


def influence_factors(
    weights: Sequence[float], raters: Sequence[str], *, settings: BatchSettings
) -> list[float]:
    """Factor in [0, 1] for each episode's gradient weight (its sum of w |A| over tokens). `single_user` lifts the
    rater's cap and keeps the episode's."""
    rater_share = 1.0 if settings.single_user else settings.max_rater_share
    return capped_factors(weights, raters, rater_share=rater_share, episode_share=settings.max_episode_share)


def capped_factors(
    weights: Sequence[float], raters: Sequence[str], *, rater_share: float, episode_share: float
) -> list[float]:
    """The largest factors under both caps. Dropping lowers the total and with it the caps, so the total solves

        T = sum over raters of min(rater_share T, sum over its episodes of min(w, episode_share T)).

    The right side is concave in T: Newton's method from sum(w) falls to the largest root in finitely many steps. With
    fewer raters than 1 / rater_share the only root is 0 and everything is dropped.
    """
    members: dict[str, list[int]] = {}
    for index, rater in enumerate(raters):
        members.setdefault(rater, []).append(index)
    total = _largest_total(
        [[weights[i] for i in group] for group in members.values()], rater_share, episode_share
    )
    factors = [0.0] * len(weights)
    for group in members.values():
        kept = [min(weights[i], episode_share * total) for i in group]
        shrink = min(1.0, rater_share * total / sum(kept)) if sum(kept) > 0 else 1.0
        for index, weight in zip(group, kept, strict=True):
            factors[index] = shrink * weight / weights[index] if weights[index] > 0 else 1.0
    return factors


def _largest_total(groups: Sequence[Sequence[float]], rater_share: float, episode_share: float) -> float:
    """The largest T that equals what the caps leave of it."""
    total = sum(sum(group) for group in groups)
    for _ in range(4 * sum(len(group) for group in groups) + 4):
        free, slope = 0.0, 0.0
        for group in groups:
            piece_free = sum(w for w in group if w <= episode_share * total)
            piece_slope = episode_share * sum(1 for w in group if w > episode_share * total)
            if piece_free + piece_slope * total > rater_share * total:
                piece_free, piece_slope = 0.0, rater_share
            free, slope = free + piece_free, slope + piece_slope
        if free + slope * total >= total * (1.0 - 1e-12):
            return total
        if slope >= 1.0 or free == 0.0:
            return 0.0
        total = free / (1.0 - slope)
    return total
