"""Runs the agent's tools: every call gets exactly one result, in bounded time and size.

Invariant: whatever a tool does, `run` returns a text for the model; only a cancellation of the caller gets out.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from feedback.schemas import Fault
from tools.arguments import listed, nearest, problem
from tools.parse import Call
from tools.pool import DaemonPool
from tools.results import capped
from tools.shield import Outcome, answer, answer_async, failure, is_async, shielded

NAME_CAP = 64  # characters of an invented tool name that are kept


@dataclass(frozen=True)
class ToolLimits:
    """Seconds one call may take, tokens it may answer, calls of blocking tools at a time."""

    tool_s: float = 10.0
    output_tokens: int = 512
    concurrency: int = 8


@dataclass(frozen=True)
class ToolResult:
    """What the model is told; `truncated` = tokens removed from it."""

    name: str
    content: str
    fault: Fault | None = None
    truncated: int = 0


class Failed(Exception):
    """A call that its tool does not answer; the text is for the model."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = fault


class Toolbox:
    """The tools of one agent."""

    def __init__(
        self, tools: Sequence[BaseTool], limits: ToolLimits, count_tokens: Callable[[str], int]
    ) -> None:
        self.tools = tuple(shielded(tool) for tool in tools)
        self._by_name = {tool.name: tool for tool in self.tools}
        if len(self._by_name) != len(self.tools):
            raise ValueError(f"two tools have the same name among {listed(tool.name for tool in tools)}")
        self._arguments = {tool.name: tuple(tool.args) for tool in self.tools}  # slow to work out: once
        self._limits, self._count = limits, count_tokens
        self._pool: DaemonPool[Outcome] = DaemonPool(limits.concurrency)
        self._hung: dict[str, set[Any]] = {name: set() for name in self._by_name}
        self._hung_cap = max(1, limits.concurrency // 2)

    @classmethod
    def load(cls, specs: Sequence[str], limits: ToolLimits, count_tokens: Callable[[str], int]) -> "Toolbox":
        """From `module:attribute` addresses; ValueError names the one that is wrong."""
        return cls([load_tool(spec) for spec in specs], limits, count_tokens)

    async def run(self, call: Call, *, episode_id: str, timeout_s: float) -> ToolResult:
        """Check and run one call, for at most `timeout_s` and the tool's own limit."""
        name = call.name[:NAME_CAP] or "invalid"
        fault: Fault | None = None
        try:
            text = await self._answer(call, episode_id, min(timeout_s, self._limits.tool_s))
        except Failed as failure:
            text, fault = f"error: {failure}", failure.fault
        content, removed = capped(text, self._limits.output_tokens, count_tokens=self._count)
        return ToolResult(name, content, fault, removed)

    async def _answer(self, call: Call, episode_id: str, seconds: float) -> str:
        tool = self._checked(call)
        if len(self._hung[tool.name]) >= self._hung_cap:
            raise Failed("limit", f"{tool.name} is busy; try again later")
        config: RunnableConfig = {"configurable": {"episode_id": episode_id}}
        waiter, job = self._started(tool, call.arguments_json or {}, config)
        try:
            done, _ = await asyncio.wait({waiter}, timeout=max(0.0, seconds))
        except asyncio.CancelledError:
            self._abandon(tool.name, waiter, job)
            raise
        if not done:
            self._abandon(tool.name, waiter, job)
            raise Failed("timeout", f"{tool.name} took longer than {seconds:g} s")
        outcome = waiter.result()
        if outcome.failed:
            raise Failed("exception", outcome.text)
        return outcome.text

    def _checked(self, call: Call) -> BaseTool:
        """The tool of a call whose arguments fit it."""
        if call.error and not call.name:
            raise Failed("malformed", call.error)
        if call.name not in self._by_name:
            hint, names = nearest(call.name, self._by_name), ", ".join(self._by_name)
            raise Failed("unknown_tool", f"unknown tool {call.name[:NAME_CAP]!r}{hint}; tools: {names}")
        if call.error or call.arguments_json is None:
            raise Failed("malformed", call.error or f"the arguments of {call.name} cannot be read")
        tool = self._by_name[call.name]
        try:
            wrong = problem(tool, call.arguments_json, names=self._arguments[tool.name])
        except (Exception, SystemExit) as error:  # a tool's own validator may raise anything
            raise Failed("exception", failure(tool.name, error).text) from error
        if wrong:
            raise Failed("arguments", wrong)
        return tool

    def _started(
        self, tool: BaseTool, arguments: dict[str, Any], config: RunnableConfig
    ) -> tuple["asyncio.Future[Outcome]", Future[Outcome] | None]:
        if is_async(tool):
            return asyncio.ensure_future(answer_async(tool, arguments, config)), None
        job = self._pool.submit(partial(answer, tool, arguments, config))
        return asyncio.wrap_future(job), job

    def _abandon(self, name: str, waiter: "asyncio.Future[Outcome]", job: Future[Outcome] | None) -> None:
        """Stop waiting. A call that has begun is remembered until it ends: it may never."""
        waiter.cancel()
        if job is not None and job.cancel():
            return  # it was still queued
        running: Any = waiter if job is None else job
        self._hung[name].add(running)
        running.add_done_callback(self._hung[name].discard)


def load_tool(spec: str) -> BaseTool:
    """The tool at `module:attribute`."""
    module, colon, attribute = spec.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{spec!r} is not a tool address; write it like tools.travel:flights")
    try:
        found = vars(import_module(module))[attribute]
    except ModuleNotFoundError as missing:
        raise ValueError(f"{spec!r}: there is no module {missing.name}") from None
    except KeyError:
        raise ValueError(f"{spec!r}: {module} has no {attribute}{nearest(attribute, _in(module))}") from None
    if not isinstance(found, BaseTool):
        raise ValueError(f"{spec!r} is a {type(found).__name__}, not a tool; decorate it with @tool")
    return found


def _in(module: str) -> list[str]:
    return [name for name, value in vars(import_module(module)).items() if isinstance(value, BaseTool)]
