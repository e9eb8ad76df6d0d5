"""What a piece of feedback says, checked against the metric registry. Pure: it knows no target and stores nothing.

Every refusal names the field; a value is never converted, and 0 and false are real negatives.
"""

from collections.abc import Mapping
from typing import Any

from feedback.metric_section import COMMENT, COMPARISON, DEMONSTRATION, RESERVED, Metric, metric_named
from serving.errors import ApiError, field_error
from serving.feedback.bodies import Given, GivenPatch
from serving.feedback.scores import BadValue, score_of

_LONGEST_COMMENT, _LONGEST_CORRECTION = 8192, 32768
Content = dict[str, Any]
"""value, score, comment, correction, comparison, source, metadata: what is stored of it."""


def metric_of(metrics: Mapping[str, Metric], name: str, field: str) -> Metric:
    """The metric; 400 where the agent file has none of that name."""
    metric = metric_named(metrics, name)
    if metric is None:
        known = ", ".join([*metrics, *RESERVED])
        message = f"no metric {name!r} in the agent file; there are {known}"
        raise ApiError(400, message, code="unknown_metric", param=field)
    return metric


def name_of(body: Given, where: str) -> str:
    """The metric's name; what can only be one thing needs none."""
    if body.metric():
        return str(body.metric())
    if body.chosen is not None or body.rejected is not None:
        return COMPARISON
    if body.given_correction() is not None:
        return DEMONSTRATION
    if body.given_comment() is not None:
        return COMMENT
    raise field_error(place(where, "name"), "the metric's name is missing", code="missing")


def content_of(metrics: Mapping[str, Metric], name: str, body: Given, *, where: str) -> Content:
    """What is stored, but for the comparison, whose replies are yet to be found."""
    metric = metric_of(metrics, name, place(where, "name"))
    if metric.type != "comparison" and (body.chosen is not None or body.rejected is not None):
        raise field_error(place(where, "name"), f"{name} is no comparison", code="invalid_value")
    source = (
        {"type": body.source.type, "id": body.source.id} if body.source else {"type": "human", "id": None}
    )
    content: Content = {
        "value": None,
        "score": None,
        "comment": body.given_comment(),
        "correction": correction_text(body.given_correction(), place(where, body.correction_field())),
        "comparison": None,
        "source": source,
        "metadata": body.metadata or {},
    }
    if metric.type == "comparison":
        return content
    value_field = place(where, body.value_field())
    return content | _valued(name, metric, body.given_value(), content, value_field)


def pair_of(body: Given, where: str) -> tuple[str, str]:
    """(chosen, rejected) of a comparison, as two fields or as the value."""
    value = body.given_value()
    if value is not None and not isinstance(value, dict):
        raise field_error(place(where, body.value_field()), 'must be {"chosen": …, "rejected": …}')
    named = {"chosen": body.chosen, "rejected": body.rejected}
    for field, given in named.items():
        inside = (value or {}).get(field)
        if given is not None and inside is not None and given != inside:
            raise field_error(place(where, field), "differs from the one in value", code="ambiguous")
        named[field] = given if given is not None else inside
        if not isinstance(named[field], str) or not named[field]:
            raise field_error(place(where, field), "a response id is needed", code="missing")
    return str(named["chosen"]), str(named["rejected"])


def changed(metrics: Mapping[str, Metric], name: str, content: Content, patch: GivenPatch) -> Content:
    """The content with what the patch gives."""
    given, metric = patch.model_fields_set, metric_of(metrics, name, "name")
    new = dict(content)
    if "comment" in given:
        new["comment"] = patch.comment
    if "correction" in given:
        new["correction"] = correction_text(patch.correction, "correction")
    if "metadata" in given:
        new["metadata"] = patch.metadata or {}
    if metric.type == "comparison" and "value" in given:
        raise field_error("value", "send the comparison again with the other reply as chosen")
    if name in (COMMENT, DEMONSTRATION):
        field = "comment" if name == COMMENT else "correction"
        value = patch.value if "value" in given else new[field]
        new[field] = None
        return new | _valued(name, metric, value, new, "value" if "value" in given else field)
    if "value" in given:
        new |= _valued(name, metric, patch.value, new, "value")
    return new


def correction_text(value: Any, field: str) -> str | None:
    """The text of a correction: plain, of an assistant message, or of a list of text blocks."""
    if isinstance(value, dict):
        value = value.get("content")
        if value is None:
            raise field_error(field, "needs a text `content`")
    if isinstance(value, list):
        blocks = [block.get("text") if isinstance(block, dict) else None for block in value]
        value = "\n".join(text if isinstance(text, str) else "" for text in blocks)
        if not all(isinstance(text, str) for text in blocks):
            raise field_error(field, "only blocks with a `text` can be learned from")
    return None if value is None else _text(value, field, _LONGEST_CORRECTION)


def place(where: str, field: str) -> str:
    """The field's name in a batch."""
    return f"{where}.{field}" if where else field


def _valued(name: str, metric: Metric, value: Any, content: Content, field: str) -> Content:
    """The part of the content that the metric decides."""
    if name == COMMENT:
        text = _text(content["comment"] if value is None else value, field, _LONGEST_COMMENT)
        return {"value": text, "comment": text}
    if name == DEMONSTRATION:
        better = correction_text(value, field) if value is not None else content["correction"]
        if better is None:
            raise field_error(field, "must be text")
        return {"correction": better}
    try:
        score = score_of(metric, value)
    except BadValue as error:
        raise field_error(field, str(error)) from error
    return {"value": value if isinstance(value, bool) else float(value), "score": score}


def _text(value: Any, field: str, longest: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise field_error(field, f"must be text of 1 to {longest} characters")
    return value
