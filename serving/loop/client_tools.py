"""Tools that the client declares and runs itself, in the form that the template lists tools in. They are never run here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from serving.bodies import ClientTool
from serving.errors import ApiError, field_error


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the client's tools may be called (None: every one), and whether one must be."""

    allowed: frozenset[str] | None = None
    forced: bool = False

    def may_call(self, name: str) -> bool:
        """Whether a call of this tool is handed to the client."""
        return self.allowed is None or name in self.allowed


ANY_TOOL = ToolChoice()


def declared(tools: Sequence[ClientTool] | None, *, taken: set[str]) -> list[BaseTool]:
    """The client's tools as langchain tools. A clash with one of the agent's own is a 400."""
    found: dict[str, BaseTool] = {}
    for index, tool in enumerate(tools or ()):
        name = tool.function.name
        where = f"tools[{index}].function.name"
        if name in taken:
            message = f"the agent has a tool {name!r} of its own"
            raise field_error(where, message, status=400, code="name_clash")
        if name in found:
            raise field_error(where, f"{name!r} is declared twice", status=400, code="name_clash")
        found[name] = _as_tool(tool)
    return list(found.values())


def chosen(tool_choice: str | Mapping[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    """What `tool_choice` says about the declared tools; a choice that cannot be kept is a 400."""
    match tool_choice:
        case None | "auto":
            return ANY_TOOL
        case "none":
            return ToolChoice(frozenset())
        case "required":
            return _forced(names, names)
        case {"type": "function", "function": {"name": str(name)}}:
            return _forced([name], names)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*some]},
        }:
            allowed = _among([_name_of(each) for each in some], names)
            return ToolChoice(allowed) if mode == "auto" else _forced(sorted(allowed), names)
    raise _bad_choice('tool_choice: none, auto, required or {"type": "function", "function": {"name": …}}')


def fingerprint(tools: Sequence[ClientTool] | None) -> str:
    """Equal for equal declarations: another list of tools is another conversation."""
    return json.dumps([tool.model_dump() for tool in tools or ()], sort_keys=True)


def _forced(wanted: Sequence[str], names: Sequence[str]) -> ToolChoice:
    if not names:
        raise _bad_choice("tool_choice: a call can be forced only where tools are declared")
    return ToolChoice(_among(wanted, names), forced=True)


def _among(wanted: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    for name in wanted:
        if name not in names:
            raise _bad_choice(f"tool_choice: {name[:64]!r} is not among the declared tools")
    return frozenset(wanted)


def _name_of(entry: Any) -> str:
    match entry:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise _bad_choice("tool_choice: allowed_tools lists functions by name")


def _bad_choice(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param="tool_choice")


def _as_tool(tool: ClientTool) -> BaseTool:
    schema = tool.function.parameters or {"type": "object", "properties": {}}
    schema = {"title": tool.function.name, **schema}
    schema.setdefault("properties", {})
    description = tool.function.description or tool.function.name
    return StructuredTool(name=tool.function.name, description=description, args_schema=schema, func=_never)


def _never(**_: object) -> str:
    raise AssertionError("a client's tool is run by the client")
