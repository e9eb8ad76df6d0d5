"""One property: a reply never depends on how the engine's stream was cut, nor on whether it was streamed to the client.

Ids per event, bytes per read, split characters, several turns with calls of both sides between the words; in the chat
shapes and in the Responses shapes, log-probabilities included.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.tools import tool

from feedback.agent_file import Limits
from feedback.schemas import Sampling
from serving import sse
from serving.delivery import Shapes
from serving.engines.engine import Sampled, read_event
from serving.engines.router import Assignment
from serving.episodes import Episode, Opening
from serving.loop.agent import Agent
from serving.loop.ask import Ask, TextDelta
from serving.loop.transcript import Transcript
from serving.loop.visible import markers
from serving.opening import Opened
from serving.reply import ChatShapes
from serving.responses.body import ResponsesRequest
from serving.responses.shapes import ResponseShapes
from tests.serving.harness import content, events
from tests.serving.loop.test_visible import CUTS, TEXTS, pieces
from tests.serving.tiny import tiny_tokenizer, write_model
from tools.template import load_template, signatures
from tools.toolbox import Toolbox, ToolLimits

TOKENIZER = tiny_tokenizer()
CALLS = st.sampled_from(
    [
        "",
        "<tool_call>echo(hi)</tool_call>",
        "<tool_call>look(Lima)</tool_call>",
        "<tool_call>look(",
        "<tool_call>nothing(x)</tool_call>",
        "</tool_call>",
    ]
)
TURN = st.tuples(TEXTS, CALLS, st.sampled_from(["", " é more"]), CALLS).map("".join)


@tool
async def echo(text: str) -> str:
    """Say it back."""
    return text


class CutEngine:
    """Samples scripted turns; each comes as the engine's bytes, cut wherever the test says."""

    def __init__(self, turns: Sequence[str], ids: list[int], reads: list[int]) -> None:
        self._turns, self._ids, self._reads = list(turns), ids, reads

    async def sample(
        self, prompt_ids: Sequence[int], *, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]:
        text = self._turns.pop(0) if self._turns else "The end."
        sampled = list(TOKENIZER.encode(text + "<|im_end|>").ids)[: params["max_tokens"]]
        parts = pieces(sampled, self._ids)
        body = b"".join(_event(part, params, finish="stop" if part is parts[-1] else None) for part in parts)
        edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in self._reads)})
        parser = sse.EventParser()
        for start, end in pairwise(edges):
            for data in parser.feed(body[start:end]):
                found = read_event(data, prompt_ids, "v1", top=params.get("logprobs", 0))
                assert found is not None
                yield found


def _event(ids: list[int], params: Mapping[str, Any], *, finish: str | None) -> bytes:
    top = [{f"token_id:{token}": -0.5, f"token_id:{(token + 1) % 200}": -1.5} for token in ids]
    logprobs = {"token_logprobs": [-0.5] * len(ids), "top_logprobs": top}
    choice = {"token_ids": ids, "logprobs": logprobs, "finish_reason": finish, "text": "\u2028"}
    return sse.event({"model": "v1", "choices": [choice]})


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    model: Path = write_model(tmp_path_factory.mktemp("model"))
    template = load_template("desk", model)
    toolbox = Toolbox([echo], ToolLimits(tool_s=30), template.count)
    return Agent(
        template,
        toolbox,
        limits=Limits(rounds=3, tool_calls=4, identical_calls=3, wall_s=60, tool_s=30),
        signatures=signatures([echo]),
        hidden=markers(model),
        max_context=4000,
        max_completion=300,
    )


def opened(agent: Agent, *, scored: bool) -> Opened:
    prompt = agent.template.user("Hi") + agent.template.open_turn()
    ask = Ask("ep_1", "v1", prompt, client_tools={"look": ("city",)}, top_logprobs=1 if scored else None)
    assignment = Assignment("champion", "v1", 1.0, 0, None, ())
    episode = Episode("ep_1", "app", None, assignment, created_at=0, last_at=0)
    opening = Opening(
        response_id="resp_1",
        episode=episode,
        index=0,
        parent=None,
        user=None,
        assignment=assignment,
        user_text="Hi",
        started_at=0,
        thread="",
        starts=(),
    )
    return Opened(opening, ask, Sampling(), 0.0)


async def _keep(value: dict[str, Any]) -> None:
    """Nothing is stored."""


def shapes(each: Opened, kind: str) -> Shapes:
    if kind == "chat":
        return ChatShapes([each], agent="a", created=0, include_usage=True)
    body = ResponsesRequest.model_validate({"model": "a", "input": "Hi"})
    return ResponseShapes(each, body, agent="a", clock=lambda: 0, keep=_keep)


async def replied(agent: Agent, each: Opened, engine: CutEngine, kind: str) -> tuple[dict[str, Any], bytes]:
    """(the whole reply, the same one as a stream), from one run."""
    transcript, streamed = Transcript(), shapes(each, kind)
    data = streamed.first()
    async for event in agent.run(each.ask, engine, transcript):
        if isinstance(event, TextDelta):
            data += streamed.piece(0, event)
    data += streamed.ended(0, transcript) + streamed.last([transcript])
    return shapes(each, kind).whole([transcript]), data


def of_chat(whole: dict[str, Any]) -> list[Any]:
    choice = whole["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [message["content"] or "", calls, choice["finish_reason"], choice["logprobs"], whole["usage"]]


def of_chat_stream(data: bytes) -> list[Any]:
    found = [event for event in events(data) if event != "[DONE]"]
    choices = [choice for event in found for choice in event["choices"]]
    calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    scores = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {"content": [each for score in scores for each in score["content"]], "refusal": None}
    (finish,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return [content(found), calls, finish, joined, found[-1]["usage"]]


def of_response(whole: dict[str, Any]) -> list[Any]:
    items = [{key: value for key, value in item.items() if "id" not in key} for item in whole["output"]]
    return [items, whole["status"], whole["usage"]]


def typed(data: bytes) -> list[Any]:
    """The events of a Responses stream, each under the name it carries in its data."""
    found = []
    for part in data.decode().split("\n\n")[:-1]:
        name, _, value = part.partition("\ndata: ")
        (event,) = events(f"data: {value}\n\n".encode())
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


@settings(deadline=None)
@given(turns=st.lists(TURN, min_size=1, max_size=3), ids=CUTS, reads=CUTS)
def test_every_cut_and_both_ways_to_reply_say_the_same(
    agent: Agent, turns: list[str], ids: list[int], reads: list[int]
) -> None:
    clean = [turn.encode("utf-8", "replace").decode() for turn in turns]
    each = opened(agent, scored=True)

    def reply(kind: str, engine: CutEngine) -> tuple[dict[str, Any], bytes]:
        return asyncio.run(replied(agent, each, engine, kind))

    expected, _ = reply("chat", CutEngine(clean, [], []))
    whole, stream = reply("chat", CutEngine(clean, ids, reads))
    assert of_chat(whole) == of_chat(expected)
    assert of_chat_stream(stream) == of_chat(expected)
    other, typed_stream = reply("responses", CutEngine(clean, ids, reads))
    found = typed(typed_stream)
    assert of_response(found[-1]["response"]) == of_response(other)
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert text == of_chat(expected)[0]
    calls = [item for item in other["output"] if item["type"] == "function_call"]
    assert [{"name": call["name"], "arguments": call["arguments"]} for call in calls] == of_chat(expected)[1]
