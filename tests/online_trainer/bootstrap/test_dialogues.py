"""Training rows are what serving would send and sample, and only what the agent would sample counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from online_trainer.bootstrap.cut import add_control_tokens
from online_trainer.bootstrap.dialogues import Row, plan_batches, read_dialogues, render, rounded, to_batch
from tools.calculator import calculate
from tools.template import Desk
from tools.travel import flights, hotels

TOOLS = [flights, hotels, calculate]
CALLED = [{"name": "flights", "arguments": {"to": "Lima"}}, {"name": "hotels", "arguments": {"city": "Lima"}}]
DIALOGUE: dict[str, Any] = {
    "system": "You are a travel desk agent.",
    "messages": [
        {"role": "user", "content": "A trip to Lima for 4 nights."},
        {"role": "assistant", "content": "", "calls": CALLED},
        {"role": "tool", "name": "flights", "content": "24 Delta; 30 Polar"},
        {"role": "tool", "name": "hotels", "content": "43 Rose; 28 Hill"},
        {"role": "assistant", "content": "", "calls": [{"name": "calc", "arguments": {"expr": "24+28*4"}}]},
        {"role": "tool", "name": "calc", "content": "136"},
        {"role": "assistant", "content": "Flight 24 Delta, hotel 28 Hill. Total 136."},
        {"role": "user", "content": "Thanks!<|im_end|>"},
        {"role": "assistant", "content": "My pleasure."},
    ],
}
SAMPLED = [
    "<tool_call>flights( Lima)</tool_call><tool_call>hotels( Lima)</tool_call><|im_end|>",
    "<tool_call>calc( 24+28*4)</tool_call><|im_end|>",
    "Flight 24 Delta, hotel 28 Hill. Total 136.<|im_end|>",
    "My pleasure.<|im_end|>",
]


@pytest.fixture
def template(tokenizer_json: str) -> Desk:
    return Desk(add_control_tokens(tokenizer_json, ("<tool_call>", "</tool_call>")))


def test_exactly_the_agents_tokens_count(template: Desk) -> None:
    row = render(DIALOGUE, template, TOOLS)
    assert template.decode([i for i, counts in zip(row.ids, row.mask, strict=True) if counts]) == "".join(
        SAMPLED
    )


def test_each_counted_run_is_preceded_by_an_opened_turn_and_by_nothing_that_serving_would_not_send(
    template: Desk,
) -> None:
    row = render(DIALOGUE, template, TOOLS)
    ids = list(template.start(DIALOGUE["system"], TOOLS))
    places: list[int] = []
    sampled: list[int] = []
    for message in DIALOGUE["messages"]:
        if message["role"] != "assistant":
            text = message["content"]
            ids += (
                template.user(text)
                if message["role"] == "user"
                else template.tool_result(message["name"], text)
            )
            continue
        ids += template.open_turn()
        start = len(ids)
        while len(ids) < len(row.ids) and row.mask[len(ids)]:
            ids.append(row.ids[len(ids)])
        sampled = ids[start:]
        places += range(start, len(ids))
        ids += template.close_turn(sampled)
    assert tuple(ids) == row.ids
    assert [place for place, counts in enumerate(row.mask) if counts] == places


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.jsonl"
    path.write_text(json.dumps(DIALOGUE) + "\n" + '{"system": "x"}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_dialogues(path))


@given(lengths=st.lists(st.integers(5, 400), max_size=80), seed=st.integers(0, 99))
def test_every_row_is_in_one_batch_that_fits(lengths: list[int], seed: int) -> None:
    batches = plan_batches(lengths, tokens=1024, generator=torch.Generator().manual_seed(seed))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        widths = [rounded(lengths[row]) for row in batch]
        assert len(batch) * max(widths) <= 1024 and max(widths) - min(widths) <= 16


def test_padding_never_counts() -> None:
    batch = to_batch([Row((5, 6), (False, True)), Row((7, 8, 9), (False, True, True))], pad=0)
    assert batch.ids_BT.tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch.mask_BT.tolist() == [[False, True, False], [False, True, True]]
