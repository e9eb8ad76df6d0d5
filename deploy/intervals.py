"""95 % intervals by bootstrap over tasks. Pure: the generator is an argument, so a figure can be had again from its seed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % percentile bootstrap interval."""

    mean: float
    lo: float
    hi: float

    def as_json(self) -> dict[str, float]:
        """The three numbers, rounded for people."""
        return {key: round(value, 4) for key, value in asdict(self).items()}


def mean_interval(values: Sequence[float], *, seed: int) -> Interval:
    """Interval of the mean of one value per task. ValueError when there is no value."""
    if not len(values):
        raise ValueError("an interval needs at least one value")
    sample = np.asarray(values, dtype=float)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.percentile(sample[picks].mean(axis=1), [2.5, 97.5])
    return Interval(mean=float(sample.mean()), lo=float(low), hi=float(high))


def paired_interval(after: Sequence[float], before: Sequence[float], *, seed: int) -> Interval:
    """Interval of the mean difference over the same tasks in the same order."""
    if len(after) != len(before):
        raise ValueError(f"paired values need equal lengths, not {len(after)} and {len(before)}")
    return mean_interval(np.asarray(after, dtype=float) - np.asarray(before, dtype=float), seed=seed)
