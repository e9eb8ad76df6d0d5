"""The table of accepted values (case 56): 0 and false are real negatives, nothing is converted or clamped."""

import math

import pytest

from feedback.metric_section import Metric
from serving.feedback.scores import BadValue, score_of

BOOLEAN, UNIT, STARS = Metric(), Metric(type="float"), Metric(type="float", min=1, max=5)


@pytest.mark.parametrize(
    ("metric", "value", "score"),
    [
        (BOOLEAN, True, 1.0),
        (BOOLEAN, False, 0.0),
        (BOOLEAN, 1, 1.0),
        (BOOLEAN, 0, 0.0),
        (BOOLEAN, 0.0, 0.0),
        (BOOLEAN, -0.0, 0.0),
        (UNIT, 0, 0.0),
        (UNIT, -0.0, 0.0),
        (UNIT, 0.25, 0.25),
        (UNIT, 1, 1.0),
        (STARS, 1, 0.0),
        (STARS, 3, 0.5),
        (STARS, 5, 1.0),
        (Metric(type="float", optimize="min"), 0.25, 0.75),
        (Metric(optimize="min"), False, 1.0),
    ],
)
def test_accepted(metric: Metric, value: object, score: float) -> None:
    found = score_of(metric, value)
    assert found == score and math.copysign(1, found) == 1


@pytest.mark.parametrize("metric", [BOOLEAN, UNIT, STARS])
@pytest.mark.parametrize(
    "value", [None, "1", "up", math.inf, math.nan, -1, 1.0000001 + 4, [1], {"value": 1}, 10**400]
)
def test_refused(metric: Metric, value: object) -> None:
    with pytest.raises(BadValue):
        score_of(metric, value)


@pytest.mark.parametrize(
    ("metric", "value"), [(BOOLEAN, 1.0000001), (BOOLEAN, 5), (UNIT, True), (UNIT, 1.0000001)]
)
def test_neither_clamped_nor_converted(metric: Metric, value: object) -> None:
    with pytest.raises(BadValue):
        score_of(metric, value)
