"""From a rating's value to a score in [0, 1]: the table of accepted values. Pure; missing is an error and never zero.

| metric  | accepted                                  | score                                   |
|---------|-------------------------------------------|-----------------------------------------|
| boolean | true, false; the numbers 1 and 0 (-0.0 too) | 1 or 0                                |
| float   | finite numbers in [min, max]              | (x - min) / (max - min)                 |

Anything else (null, text, lists, objects, a boolean for a float metric, out of range) is refused, never converted or
clamped. `optimize: min` turns the score round.
"""

from typing import Any

from feedback.metric_section import Metric


class BadValue(ValueError):
    """The value is not one of the metric's; the text says what is."""


def score_of(metric: Metric, value: Any) -> float:
    """The score; raises BadValue."""
    unit = _boolean(value) if metric.type == "boolean" else _number(metric, value)
    return 1.0 - unit if metric.optimize == "min" else unit


def _boolean(value: Any) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and value in (0, 1):
        return float(abs(value))
    raise BadValue("must be true or false (or the number 1 or 0)")


def _number(metric: Metric, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"must be a number from {metric.min:g} to {metric.max:g}")
    if not metric.min <= value <= metric.max:  # also refuses NaN
        raise BadValue(f"must lie between {metric.min:g} and {metric.max:g}; it is not clamped")
    return (value - metric.min) / (metric.max - metric.min) + 0.0  # + 0.0: -0.0 is 0
