"""Do a call's arguments fit the tool's schema? Strictly, and with a message the model can act on.

Invariant: nothing is converted or dropped: "five", "5" and 5.0 are not an int, an extra name is an error.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

SHOWN = 40  # characters of a wrong value quoted back


def _is_int(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# JSON Schema itself takes 5.0 for an integer.
_Strict = extend(
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_int)
)


def problem(tool: BaseTool, arguments: Mapping[str, Any], *, names: Sequence[str]) -> str | None:
    """What is wrong with the arguments, naming the field and the valid `names`; None = nothing."""
    for extra in arguments:
        if extra not in names:
            return (
                f"unknown argument {_short(extra)}{nearest(extra, names)}; {tool.name} takes {listed(names)}"
            )
    found = _mismatch(tool, arguments)
    return f"{found}; {tool.name} takes {listed(names)}" if found else None


def nearest(name: str, valid: Iterable[str]) -> str:
    """`, did you mean …?` or nothing."""
    close = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def _mismatch(tool: BaseTool, arguments: Mapping[str, Any]) -> str | None:
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        errors = sorted(_Strict(schema).iter_errors(dict(arguments)), key=lambda error: list(error.path))
        if errors and errors[0].validator == "required" and not errors[0].path:
            absent = next(name for name in errors[0].validator_value if name not in arguments)
            return f"argument {_short(absent)} is missing"
        return _named(errors[0].path, errors[0].message[:160]) if errors else None
    if not issubclass(schema, BaseModel):
        return None  # a pydantic 1 schema: the tool itself validates
    try:
        schema.model_validate_json(json.dumps(dict(arguments)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "missing":
            return f"argument {_short(str(first['loc'][-1]))} is missing"
        return _named(first["loc"], f"{first['msg'].lower()}, not {_short(first['input'])}")
    return None


def _named(path: Iterable[str | int], message: str) -> str:
    where = ".".join(str(part) for part in path)
    return f"argument {where!r}: {message}" if where else message


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
