"""The `metrics:` section of the agent file: the registry of what people may say about an answer.

Three names are always there: a comment, a demonstration (what it should have said) and a comparison of two replies.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from feedback.section import Section

COMMENT, DEMONSTRATION, COMPARISON = "comment", "demonstration", "comparison"
RESERVED = (COMMENT, DEMONSTRATION, COMPARISON)
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


def _seconds(value: Any) -> Any:
    """`30m` -> 1800.0; plain numbers are seconds."""
    if isinstance(value, str):
        match = _DURATION.match(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a duration; write it like 15s, 30m, 24h or 7d")
        return float(match[1]) * _SECONDS[match[2]]
    return value


def _declarable(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name!r} is always there and cannot be declared")
    if not _NAME.match(name):
        raise ValueError(f"{name!r} must match {_NAME.pattern}: it is a label of metrics")
    return name


Duration = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
MetricName = Annotated[str, AfterValidator(_declarable)]


class Metric(Section):
    """One kind of feedback. `window` is how far from the reply, on either side, it still counts."""

    type: Literal["boolean", "float", "comparison"] = "boolean"
    level: Literal["response", "episode"] = Field(
        default="response", description="episode: said of a reply, it counts for the whole episode"
    )
    optimize: Literal["max", "min"] = "max"
    min: float = 0.0
    max: float = 1.0
    window: Duration = 86400.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError("min must be below max")
        if self.type == "comparison" and self.level == "episode":
            raise ValueError("a comparison is of two replies: level must be response")
        return self


def metric_named(declared: Mapping[str, Metric], name: str) -> Metric | None:
    """The metric of that name; the reserved ones have every default, the window among them."""
    if name in RESERVED:
        return Metric(type="comparison") if name == COMPARISON else Metric()
    return declared.get(name)


def longest_window(declared: Mapping[str, Metric]) -> int:
    """How far from a reply (ms) anything said of it may still count, under a declared or a reserved name."""
    metrics = (metric_named(declared, name) for name in (*declared, *RESERVED))
    return max(round(metric.window * 1000) for metric in metrics if metric is not None)
