"""Teachers' dialogues as training rows, spelled by the template that serving uses.

Invariant: the mask is True on exactly the tokens that the agent would have sampled: its text, its calls and the
closing control token, never the scaffolding, the user's words or a tool's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.parse import Call
from tools.template import Template

if TYPE_CHECKING:
    import torch
    from langchain_core.tools import BaseTool

    from online_trainer.bootstrap.supervised import Batch

ROUND = 16
"""Row lengths are rounded up to a multiple of this, so that rows of a batch differ little."""


@dataclass(frozen=True)
class Row:
    ids: tuple[int, ...]
    mask: tuple[bool, ...]


def read_dialogues(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a dialogue file; a bad line is named by its number."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                dialogue = json.loads(line)
                if not isinstance(dialogue["system"], str) or not isinstance(dialogue["messages"], list):
                    raise TypeError("system must be text and messages a list")
            except (ValueError, KeyError, TypeError) as problem:
                raise ValueError(f"{path}, line {number}: not a dialogue ({problem})") from problem
            yield dialogue


def render(dialogue: dict[str, Any], template: Template, tools: Sequence[BaseTool]) -> Row:
    """One dialogue as ids and mask."""
    ids = list(template.start(dialogue["system"], tools))
    mask = [False] * len(ids)
    for message in dialogue["messages"]:
        if message["role"] == "assistant":
            prompt = template.open_turn()
            calls = [Call.of(call["name"], call["arguments"]) for call in message.get("calls", ())]
            whole = template.assistant(message["content"], calls)
            closing = len(template.close_turn(template.stop_ids[:1]))
            sampled, rest = whole[len(prompt) : len(whole) - closing], whole[len(whole) - closing :]
            ids += [*prompt, *sampled, *rest]
            mask += [False] * len(prompt) + [True] * len(sampled) + [False] * len(rest)
        else:
            added = other(message, template)
            ids += added
            mask += [False] * len(added)
    return Row(tuple(ids), tuple(mask))


def other(message: dict[str, Any], template: Template) -> list[int]:
    if message["role"] == "tool":
        return template.tool_result(message["name"], message["content"])
    if message["role"] == "user":
        return template.user(message["content"])
    raise ValueError(f"a dialogue has user, assistant and tool messages, not {message['role']!r}")


def renumbered(rows: Iterable[Row], numbers: dict[int, int]) -> list[Row]:
    """The same rows in the ids of a cut vocabulary."""
    return [Row(tuple(numbers[old] for old in row.ids), row.mask) for row in rows]


def plan_batches(lengths: Sequence[int], *, tokens: int, generator: torch.Generator) -> list[list[int]]:
    """Row numbers grouped by rounded length, at most `tokens` padded tokens a batch, in random order."""
    import torch

    order = torch.randperm(len(lengths), generator=generator).tolist()
    order.sort(key=lambda row: rounded(lengths[row]))
    batches: list[list[int]] = []
    for row in order:
        width = rounded(lengths[row])
        if (
            batches
            and (len(batches[-1]) + 1) * width <= tokens
            and width - rounded(lengths[batches[-1][0]]) <= ROUND
        ):
            batches[-1].append(row)
        else:
            batches.append([row])
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def rounded(length: int) -> int:
    return -(-length // ROUND) * ROUND


def to_batch(rows: Sequence[Row], pad: int) -> Batch:
    """Rows padded on the right; padding never counts."""
    import torch

    from online_trainer.bootstrap.supervised import Batch

    width = max(len(row.ids) for row in rows)
    return Batch(
        ids_BT=torch.tensor([[*row.ids, *[pad] * (width - len(row.ids))] for row in rows]),
        mask_BT=torch.tensor([[*row.mask, *[False] * (width - len(row.mask))] for row in rows]),
    )
