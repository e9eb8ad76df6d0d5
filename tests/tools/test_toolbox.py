"""Field cases 70-74: whatever a tool does, the model gets one bounded text and the caller goes on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from pydantic import BaseModel, field_validator

from tools.parse import Call, parse_turn
from tools.toolbox import Toolbox, ToolLimits, ToolResult, load_tool

SECRET = "/srv/keys/token-1234"
release = threading.Event()  # lets the tools that hang go, when a test is over


@tool
def add(n: int, m: int = 1) -> str:
    """Add."""
    return str(n + m)


@tool
def hang() -> str:
    """Blocks until the test is over."""
    release.wait(60)
    return "late"


@tool
async def stubborn() -> str:
    """Ignores cancellation until the test is over."""
    while not release.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "late"


@tool
async def forever() -> str:
    """Never returns, but can be cancelled."""
    await asyncio.Event().wait()
    return "never"


@tool
def whose(config: RunnableConfig) -> str:
    """Says which episode it was run for."""
    return str(config["configurable"]["episode_id"])


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    release.clear()
    yield
    release.set()


def box(*tools: BaseTool, **limits: Any) -> Toolbox:
    return Toolbox(tools, ToolLimits(**{"tool_s": 5.0, "output_tokens": 64, **limits}), len)


async def run(toolbox: Toolbox, name: str, timeout_s: float = 5.0, **arguments: Any) -> ToolResult:
    return await toolbox.run(Call.of(name, arguments), episode_id="ep_1", timeout_s=timeout_s)


def raising(error: BaseException, *, asynchronous: bool = False) -> BaseTool:
    def sync() -> str:
        raise error

    async def coroutine() -> str:
        raise error

    return StructuredTool.from_function(
        func=None if asynchronous else sync,
        coroutine=coroutine if asynchronous else None,
        name="broken",
        description="Raises.",
    )


def returning(value: Any) -> BaseTool:
    return StructuredTool.from_function(lambda: value, name="gives", description="Returns.")


async def test_a_tool_answers_and_knows_its_episode() -> None:
    assert await run(box(add), "add", n=4) == ToolResult("add", "5")
    assert (await run(box(whose), "whose")).content == "ep_1"


async def test_71_malformed_calls_are_reported_and_never_run_with_nothing() -> None:
    seen: list[str] = []
    probe = StructuredTool.from_function(
        lambda city="nowhere": seen.append(city) or "ok", name="probe", description="Has a default."
    )
    toolbox = box(probe, output_tokens=400)
    text = '<tool_call>{"name": "probe", "arguments": {"city": "Par</tool_call>'
    text += '<tool_call>{"name": "probe", "arguments": "[]"}</tool_call>'
    text += '<tool_call>{"name": "probe", "arguments": {"city": "Lima"}}</tool_call>'
    calls = parse_turn(text, "hermes", {"probe": ("city",)}).calls
    results = [await toolbox.run(call, episode_id="e", timeout_s=1) for call in calls]
    assert [result.fault for result in results] == ["malformed", "malformed", None]
    assert '{"name": "probe", "arguments": {"city": "Par' in results[0].content
    assert seen == ["Lima"]


@pytest.mark.parametrize("name", ["get_wheather", "functions.whose", "ad", "x" * 5000, ""])
async def test_72_invented_names_are_told_the_real_ones(name: str) -> None:
    result = await run(box(add, whose, output_tokens=400), name)
    assert result.fault == "unknown_tool"
    assert "add, whose" in result.content and len(result.content) < 300
    assert ("did you mean 'add'" in result.content) == (name == "ad")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"n": "five"}, "'n'"),
        ({"n": "5"}, "'n'"),
        ({"n": 5.0}, "'n'"),
        ({"n": True}, "'n'"),
        ({"n": None}, "'n'"),
        ({}, '"n" is missing'),
        ({"n": 5, "k": 1}, '"k"'),
        ({"n": 5, "m": [1]}, "'m'"),
    ],
)
async def test_72_wrong_arguments_name_the_field_and_the_valid_ones(
    arguments: dict[str, Any], field: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}},
        "required": ["n"],
    }
    by_schema = StructuredTool(name="add", description="Add.", args_schema=schema, func=lambda **_: "ran")
    for one in (add, by_schema):
        result = await box(one, output_tokens=400).run(Call.of("add", arguments), episode_id="e", timeout_s=1)
        assert result.fault == "arguments", result
        assert field.strip("'\"") in result.content and "(n, m)" in result.content


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError(SECRET), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), MemoryError()]
)
async def test_72_what_a_tool_raises_becomes_a_result(error: BaseException, asynchronous: bool) -> None:
    result = await run(box(raising(error, asynchronous=asynchronous)), "broken")
    assert result.fault == "exception"
    assert result.content == f"error: broken failed ({type(error).__name__})"


async def test_72_a_tool_exception_is_meant_to_be_read() -> None:
    result = await run(box(raising(ToolException("no seats left"))), "broken")
    assert (result.fault, result.content) == ("exception", "error: broken failed: no seats left")


@pytest.mark.parametrize("error", [KeyError(SECRET), RuntimeError(SECRET), SystemExit(1)], ids=repr)
async def test_72_what_a_tools_validator_raises_becomes_a_result(error: BaseException) -> None:
    class Checked(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def _never(cls, value: int) -> int:
            raise error

    checked = StructuredTool.from_function(
        func=lambda n: str(n), name="checked", description="Checks.", args_schema=Checked
    )
    result = await run(box(checked), "checked", n=1)
    assert (result.fault, result.content) == ("exception", f"error: checked failed ({type(error).__name__})")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no result)"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\xfe\x00", "(binary data, 3 bytes)"),
        (float("nan"), "(not a number: nan)"),
        (object(), '"(an object of type object)"'),
        ({"a": [1, True]}, '{"a": [1, true]}'),
        ({1, 2}, '"(an object of type set)"'),
        (5, "5"),
        ("\ud800", "\ufffd"),
        ("", ""),
    ],
)
async def test_72_every_value_has_one_text(value: Any, text: str) -> None:
    assert await run(box(returning(value)), "gives") == ToolResult("gives", text)


async def test_72_a_real_cancellation_gets_out() -> None:
    for one in (forever, hang):
        running = asyncio.create_task(run(box(one), one.name))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("one", [hang, stubborn, forever])
async def test_73_a_hung_tool_is_given_up_at_its_deadline(one: BaseTool) -> None:
    began = time.monotonic()
    toolbox = box(one, tool_s=0.05)
    result = await run(toolbox, one.name)
    assert result.fault == "timeout" and "0.05 s" in result.content
    assert time.monotonic() - began < 2
    release.set()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        assert not (await asyncio.wait(left, timeout=5))[1], "what was given up is not let go of"


async def test_73_the_smaller_deadline_counts() -> None:
    assert (await run(box(hang, tool_s=60), "hang", 0.05)).fault == "timeout"


async def test_73_siblings_of_a_hung_call_are_answered() -> None:
    toolbox = box(hang, add, tool_s=0.3)
    results = await asyncio.gather(
        run(toolbox, "add", n=1), run(toolbox, "hang"), run(toolbox, "add", n=2), _ticks(20)
    )
    assert [result.fault for result in results[:3]] == [None, "timeout", None]


async def _ticks(count: int) -> None:
    """The loop keeps turning meanwhile."""
    for _ in range(count):
        began = time.monotonic()
        await asyncio.sleep(0.005)
        assert time.monotonic() - began < 0.25


async def test_73_a_hundred_hung_calls_take_half_of_the_slots() -> None:
    toolbox = box(hang, add, tool_s=0.2, concurrency=4)
    results = [await run(toolbox, "hang", 0.01) for _ in range(100)]
    assert [result.fault for result in results] == ["timeout"] * 2 + ["limit"] * 98
    assert (await run(toolbox, "add", n=1)).content == "2"
    release.set()
    deadline = time.monotonic() + 5
    while (await run(toolbox, "hang")).content != "late":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_73_calls_that_wait_for_a_slot_are_not_counted_as_hung() -> None:
    toolbox = box(hang, add, concurrency=1)
    first = asyncio.create_task(run(toolbox, "hang"))
    await asyncio.sleep(0.02)
    for _ in range(2):
        assert (await run(toolbox, "add", 0.02, n=1)).fault == "timeout"
    release.set()
    assert (await first).content == "late"


@pytest.mark.parametrize("size", [0, 63, 64, 65, 10_000, 2_000_000])
async def test_74_output_is_cut_at_a_character_with_a_notice(size: int) -> None:
    text = "é" * size
    result = await run(box(returning(text)), "gives")
    assert len(result.content) <= 64
    if size <= 64:
        assert (result.content, result.truncated) == (text, 0)
    else:
        kept = result.content.count("é")
        assert result.content == "é" * kept + f" [{size - kept} characters cut]"
        assert result.truncated == size - kept


async def test_74_tokens_not_characters_are_counted() -> None:
    toolbox = Toolbox([returning("one two " * 400)], ToolLimits(output_tokens=20), lambda t: len(t.split()))
    result = await run(toolbox, "gives")
    assert len(result.content.split()) == 20
    assert result.content.endswith("characters cut]")
    assert result.truncated == 800 - 17


async def test_a_toolbox_serves_more_than_one_loop() -> None:
    toolbox = box(add)
    for _ in range(2):
        got = await asyncio.to_thread(lambda: asyncio.run(run(toolbox, "add", n=1)))
        assert got.content == "2"


def test_tools_are_loaded_by_address() -> None:
    toolbox = Toolbox.load(["tools.travel:flights", "tools.calculator:calculate"], ToolLimits(), len)
    assert [one.name for one in toolbox.tools] == ["flights", "calc"]
    with pytest.raises(ValueError, match="same name"):
        Toolbox.load(["tools.travel:flights"] * 2, ToolLimits(), len)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("tools.travel", "write it like"),
        ("tools.nowhere:x", "no module tools.nowhere"),
        ("tools.travel:fligths", "did you mean 'flights'"),
        ("tools.travel:CITIES", "is a tuple, not a tool"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(spec: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load_tool(spec)
