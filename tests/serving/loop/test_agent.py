"""The loop without HTTP: limits, malformed and invented calls, hung tools, what the next prompt is."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from feedback.agent_file import Limits
from feedback.schemas import Status
from serving.engines.engine import Sampled
from serving.loop.agent import NOTHING_SAID, Agent
from serving.loop.ask import Ask, TextDelta, ToolEnded
from serving.loop.transcript import Transcript
from serving.loop.visible import markers
from tests.serving.tiny import tiny_tokenizer, write_model
from tools.template import Template, load_template, signatures
from tools.toolbox import Toolbox, ToolLimits

TOKENIZER = tiny_tokenizer()
CALL = "<tool_call>echo(hi)</tool_call>"


@tool
def echo(text: str) -> str:
    """Say it back."""
    return text


@tool
async def hang(text: str) -> str:
    """Never answers."""
    await asyncio.sleep(3600)
    return text


class Scripted:
    """Samples the next text, one id at a time; keeps the prompts it was given."""

    def __init__(self, *texts: str, end: bool = True) -> None:
        self.texts, self.end = list(texts), end
        self.prompts: list[list[int]] = []
        self.params: list[Mapping[str, Any]] = []

    async def sample(
        self, prompt_ids: Sequence[int], *, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]:
        self.prompts.append(list(prompt_ids))
        self.params.append(params)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        ids = TOKENIZER.encode(text + ("<|im_end|>" if self.end else "")).ids[: params["max_tokens"]]
        for index, token in enumerate(ids):
            yield Sampled([token], [-0.5], "stop" if index == len(ids) - 1 else None)


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return load_template("desk", write_model(tmp_path))


def make(template: Template, tmp_path: Path, *, max_context: int = 4000, **limits: Any) -> Agent:
    toolbox = Toolbox([echo, hang], ToolLimits(tool_s=0.2), template.count)
    return Agent(
        template,
        toolbox,
        limits=Limits(**{"rounds": 3, "tool_calls": 4, "identical_calls": 2, "wall_s": 5, **limits}),
        signatures=signatures(toolbox.tools),
        hidden=markers(tmp_path),
        max_context=max_context,
        max_completion=200,
    )


async def run(agent: Agent, sampler: Scripted, **ask: Any) -> tuple[Transcript, list[Any]]:
    transcript = Transcript()
    prompt = agent.template.user("Hi") + agent.template.open_turn()
    events = [event async for event in agent.run(Ask("ep_1", "v1", prompt, **ask), sampler, transcript)]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == transcript.delivered
    return transcript, events


async def test_the_next_prompt_is_these_ids_the_sampled_ones_and_the_result(
    template: Template, tmp_path: Path
) -> None:
    sampler = Scripted(CALL, "Done.")
    transcript, _ = await run(make(template, tmp_path), sampler)
    first = transcript.drafts[0]
    suffix = template.close_turn(first.token_ids) + template.tool_result("echo", "hi") + template.open_turn()
    assert sampler.prompts[1] == first.prompt_ids + first.token_ids + suffix
    assert (transcript.delivered, transcript.status, transcript.finish) == ("Done.", Status.COMPLETED, "stop")
    assert sampler.params[0]["stop_token_ids"] == list(template.stop_ids)


async def test_an_endless_loop_ends_with_an_answer_and_says_so(template: Template, tmp_path: Path) -> None:
    sampler = Scripted(CALL)
    transcript, events = await run(make(template, tmp_path), sampler)
    assert len(sampler.prompts) == 4  # three rounds with tools and one last without
    faults = [event.outcome.fault for event in events if isinstance(event, ToolEnded)]
    assert faults == [None, None, "limit"]  # the third call was identical to two before it
    assert transcript.drafts[-1].tool_calls and not transcript.drafts[-1].tool_results
    assert (transcript.status, transcript.finish, transcript.flags) == (
        Status.LIMITED,
        "length",
        ["limit_hit"],
    )
    assert transcript.delivered == NOTHING_SAID


async def test_the_last_round_may_still_answer(template: Template, tmp_path: Path) -> None:
    transcript, _ = await run(make(template, tmp_path, rounds=1), Scripted(CALL, "Done."))
    assert (transcript.delivered, transcript.status, transcript.finish) == ("Done.", Status.COMPLETED, "stop")
    assert transcript.flags == ["limit_hit"]


async def test_tool_calls_are_counted_over_the_whole_interaction(template: Template, tmp_path: Path) -> None:
    many = "".join(f"<tool_call>echo({number})</tool_call>" for number in range(6))
    transcript, _ = await run(make(template, tmp_path), Scripted(many, "Done."))
    assert [outcome.fault for outcome in transcript.drafts[0].tool_results] == [None] * 4 + ["limit"] * 2
    assert transcript.delivered == "Done."


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<tool_call>ech(hi)</tool_call>", "unknown_tool"),
        ("<tool_call>echo(hi</tool_call>", "malformed"),
        ("<tool_call>echo(hi)", "malformed"),
        ("<tool_call></tool_call>", "malformed"),
        ("<tool_call>hang(hi)</tool_call>", "timeout"),
    ],
)
async def test_a_bad_call_costs_itself_and_the_model_is_told(
    template: Template, tmp_path: Path, text: str, fault: str
) -> None:
    sampler = Scripted(text + CALL if text.endswith("</tool_call>") else text, "Done.")
    transcript, _ = await run(make(template, tmp_path), sampler)
    first = transcript.drafts[0]
    assert first.tool_results[0].fault == fault
    assert first.tool_results[0].content.startswith("error: ")
    assert len(first.tool_results) == len(first.tool_calls)
    if len(first.tool_results) > 1:
        assert first.tool_results[1].content == "hi"  # the valid sibling ran
    assert first.tool_results[0].content in template.decode(sampler.prompts[1])
    assert transcript.delivered == "Done."


async def test_text_before_a_call_and_the_answer_are_shown_apart(template: Template, tmp_path: Path) -> None:
    transcript, _ = await run(make(template, tmp_path), Scripted(f"One moment.{CALL}", "Done."))
    assert transcript.delivered == "One moment.\n\nDone."
    assert [draft.shown_text for draft in transcript.drafts] == ["One moment.", "Done."]
    transcript.keep_delivered(len("One moment.\n\nDo"))
    assert [draft.shown_text for draft in transcript.drafts] == ["One moment.", "Do"]
    transcript.keep_delivered(3)
    assert [draft.shown_text for draft in transcript.drafts] == ["One", ""]


async def test_an_empty_answer_becomes_a_sentence_and_stays_empty_in_the_record(
    template: Template, tmp_path: Path
) -> None:
    transcript, _ = await run(make(template, tmp_path), Scripted(""))
    assert transcript.delivered == NOTHING_SAID
    (turn,) = transcript.turns()
    assert (turn.shown_text, turn.raw_text, turn.flaw) == ("", "<|im_end|>", None)


async def test_a_turn_cut_by_its_length_says_so(template: Template, tmp_path: Path) -> None:
    sampler = Scripted("A long answer that goes on.", end=False)
    transcript, _ = await run(make(template, tmp_path), sampler, max_tokens=5)
    assert sampler.params[0]["max_tokens"] == 5 and len(transcript.drafts[0].token_ids) == 5


async def test_no_room_for_another_round_is_a_limit(template: Template, tmp_path: Path) -> None:
    transcript, _ = await run(make(template, tmp_path, max_context=60), Scripted(CALL))
    assert transcript.status is Status.LIMITED and transcript.delivered == NOTHING_SAID


async def test_calls_of_the_clients_own_tools_are_handed_over(template: Template, tmp_path: Path) -> None:
    text = f"<tool_call>mine(x)</tool_call>{CALL}"
    transcript, _ = await run(make(template, tmp_path), Scripted(text), client_tools={"mine": ("value",)})
    assert transcript.finish == "tool_calls"
    assert [(call.name, call.arguments) for call in transcript.client_calls] == [("mine", '{"value": "x"}')]


async def test_own_calls_beside_a_clients_one_are_run_before_it_is_handed_over(
    template: Template, tmp_path: Path
) -> None:
    text = f"<tool_call>mine(x)</tool_call>{CALL}"
    transcript, _ = await run(make(template, tmp_path), Scripted(text), client_tools={"mine": ("value",)})
    draft = transcript.drafts[0]
    assert [outcome.content for outcome in draft.tool_results] == ["hi"]
    result = template.tool_result("echo", "hi")
    assert (
        transcript.ids() == draft.prompt_ids + draft.token_ids + template.close_turn(draft.token_ids) + result
    )


async def test_an_unreadable_call_of_a_clients_tool_is_answered_here(
    template: Template, tmp_path: Path
) -> None:
    sampler = Scripted("<tool_call>mine(x</tool_call>", "Done.")
    transcript, _ = await run(make(template, tmp_path), sampler, client_tools={"mine": ("value",)})
    assert transcript.drafts[0].tool_results[0].fault == "malformed"
    assert (transcript.delivered, transcript.client_calls) == ("Done.", [])
