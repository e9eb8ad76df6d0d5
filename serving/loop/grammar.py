"""What binds the sampling of a turn: a JSON answer, or a call that must be made. Pure; the engine enforces it.

A bound turn is not plain sampling: whoever asks for one notes it in the record's `Sampling.other`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
from langchain_core.tools import BaseTool

from serving.errors import field_error

Params = Mapping[str, Any]

_ARGUMENT, _LAST = r"[^,()<>\n]+", r"[^()<>\n]+"


def json_answer(response_format: Mapping[str, Any] | None) -> Params | None:
    """The engine's parameters for `response_format`; None for text. A schema that is none is a 400."""
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": dict(schema)}}:
            _check(schema)
            named = {"name": name, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case {"type": "json_schema"}:
            raise field_error(
                "response_format.json_schema", "json_schema needs a name and a schema", status=400
            )
    raise field_error("response_format.type", "one of text, json_object and json_schema", status=400)


def one_call(dialect: str, tools: Iterable[BaseTool]) -> Params:
    """The engine's parameters for the body of one call of one of these tools, between the template's call markers."""
    if dialect == "desk":
        return {"structured_outputs": {"regex": "|".join(f"({_positional(tool)})" for tool in tools)}}
    return {"structured_outputs": {"json": _any_call(tools)}}


def _positional(tool: BaseTool) -> str:
    """`name( a,b)`; only the last argument may hold commas."""
    names = list(tool.args)
    values = ",".join([_ARGUMENT] * (len(names) - 1) + [_LAST] * bool(names))
    name = tool.name.replace(".", r"\.")
    return rf"{name}\( ?{values}\)"


def _any_call(tools: Iterable[BaseTool]) -> dict[str, Any]:
    """A JSON schema of `{"name", "arguments"}`. Definitions move to the root, where their references point."""
    definitions: dict[str, dict[str, Any]] = {}
    calls = []
    for tool in tools:
        schema: dict[str, Any] = dict(tool.args_schema) if isinstance(tool.args_schema, dict) else {}
        for key in ("$defs", "definitions"):
            own: dict[str, Any] = schema.pop(key, {})
            known = definitions.setdefault(key, {})
            if any(name in known and known[name] != value for name, value in own.items()):
                schema = {}  # two tools mean different things by one name
            known.update({name: value for name, value in own.items() if name not in known})
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"enum": [tool.name]}, "arguments": {"type": "object", **schema}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    root = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**root, **{key: value for key, value in definitions.items() if value}}


def _check(schema: dict[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = "response_format.json_schema.schema"
        raise field_error(where, f"not a JSON schema: {error.message[:200]}", status=400) from error
