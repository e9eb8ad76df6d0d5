"""Calls one tool so that nothing it raises gets out.

Invariant: SystemExit, KeyboardInterrupt and CancelledError raised *by a tool* become a failed outcome; the text of
other exceptions is not echoed, because it may hold paths and secrets (a ToolException is meant to be read).
"""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException

from tools.results import as_text

MESSAGE_CAP = 300  # characters of a tool's own error message


class Outcome(NamedTuple):
    text: str
    failed: bool


class Quit(Exception):
    """A tool tried to end more than its own call."""


def is_async(tool: BaseTool) -> bool:
    if isinstance(tool, (StructuredTool, Tool)):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def shielded(tool: BaseTool) -> BaseTool:
    """langchain awaits a coroutine in a task of its own, where SystemExit would stop the event loop."""
    if isinstance(tool, (StructuredTool, Tool)) and tool.coroutine is not None:
        return tool.model_copy(update={"coroutine": _contained(tool.coroutine)})
    return tool


def answer(tool: BaseTool, arguments: dict[str, Any], config: RunnableConfig) -> Outcome:
    """Run a blocking tool here and now."""
    try:
        return Outcome(as_text(tool.invoke(arguments, config)), failed=False)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its result
        return failure(tool.name, error)


async def answer_async(tool: BaseTool, arguments: dict[str, Any], config: RunnableConfig) -> Outcome:
    try:
        return Outcome(as_text(await tool.ainvoke(arguments, config)), failed=False)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its result
        return failure(tool.name, error)


def failure(name: str, error: BaseException) -> Outcome:
    """What the model is told of an exception."""
    if isinstance(error, ToolException):
        return Outcome(f"{name} failed: {str(error)[:MESSAGE_CAP]}", failed=True)
    kind = str(error) if isinstance(error, Quit) else type(error).__name__
    return Outcome(f"{name} failed ({kind})", failed=True)


def _contained(coroutine: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(coroutine)
    async def contained(*args: Any, **kwargs: Any) -> Any:
        try:
            return await coroutine(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise Quit(type(error).__name__) from None

    return contained
