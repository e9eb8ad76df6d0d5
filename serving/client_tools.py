"""Tools that the client declares and runs itself, in the form that the template lists tools in. They are never run here."""

import json
from collections.abc import Sequence

from langchain_core.tools import BaseTool, StructuredTool

from serving.bodies import ClientTool
from serving.errors import ApiError


def declared(tools: Sequence[ClientTool] | None, tool_choice: object, *, taken: set[str]) -> list[BaseTool]:
    """The client's tools as langchain tools. A clash with one of the agent's own is a 400."""
    if tool_choice not in (None, "auto", "none"):
        raise ApiError(
            400,
            "tool_choice: only auto and none are supported",
            code="unsupported_value",
            param="tool_choice",
        )
    if tool_choice == "none":
        return []
    found: dict[str, BaseTool] = {}
    for index, tool in enumerate(tools or ()):
        name = tool.function.name
        where = f"tools[{index}].function.name"
        if name in taken:
            raise ApiError(
                400, f"{where}: the agent has a tool {name!r} of its own", code="name_clash", param=where
            )
        if name in found:
            raise ApiError(400, f"{where}: {name!r} is declared twice", code="name_clash", param=where)
        found[name] = _as_tool(tool)
    return list(found.values())


def fingerprint(tools: Sequence[ClientTool] | None) -> str:
    """Equal for equal declarations: another list of tools is another conversation."""
    return json.dumps([tool.model_dump() for tool in tools or ()], sort_keys=True)


def _as_tool(tool: ClientTool) -> BaseTool:
    schema = tool.function.parameters or {"type": "object", "properties": {}}
    schema = {"title": tool.function.name, **schema}
    schema.setdefault("properties", {})
    description = tool.function.description or tool.function.name
    return StructuredTool(name=tool.function.name, description=description, args_schema=schema, func=_never)


def _never(**_: object) -> str:
    raise AssertionError("a client's tool is run by the client")
