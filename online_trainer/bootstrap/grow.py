"""Grows the desk model: cut it out of a larger one, re-form copying, teach it the dialogues, then the usual habits.

Invariant: everything but the clock follows from the settings and the files they name, and a run that was killed
goes on where its last checkpoint was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from online_trainer.bootstrap.cut import KEPT_LAYERS
from online_trainer.cpu import cpu_flags, has_bfloat16

if TYPE_CHECKING:
    from online_trainer.bootstrap.dialogues import Row
    from online_trainer.bootstrap.source import Source
    from online_trainer.bootstrap.supervised import Batch, Learner, Stage

REPEATS, DIALOGUES, MAJORITY = "repeats", "dialogues", "majority"
WORK = ".grow"
CONTROL = ("<tool_call>", "</tool_call>")
REPEAT_ROWS, REPEAT_TOKENS = 16, 128
REPEAT_SHARE = 0.15
"""The share of later steps that still practise copying."""


class GrowSettings(BaseModel):
    """What to grow from, on what, how long, and where to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dialogues: Path = Field(description="JSON lines of careful or mixed teachers")
    majority: Path | None = Field(
        default=None, description="JSON lines of the teachers whose habits it ends with"
    )
    out: Path = Field(description="folder of the finished model")
    source: Path | None = Field(
        default=None, description="a GGUF file; by default the locked package is fetched"
    )
    lock: Path = Field(description="the lock file that pins the package with the source weights")
    cache: Path = Field(description="folder the package is installed into")
    template: str = "desk"
    tools: tuple[str, ...] = Field(
        min_length=1, description="module:name of each tool, in the agent file's order"
    )
    layers: tuple[int, ...] = Field(default=KEPT_LAYERS, min_length=1, description="of the source, in order")
    seed: int = Field(default=0, ge=0)
    repeat_steps: int = Field(default=110, ge=0)
    dialogue_steps: int = Field(default=650, ge=0)
    majority_steps: int = Field(default=170, ge=0)
    peak: float = Field(default=6e-4, gt=0, description="learning rate of the first two stages")
    majority_peak: float = Field(default=3e-4, gt=0)
    tokens: int = Field(default=4096, ge=512, description="padded tokens a step")
    checkpoint_every: int = Field(default=25, ge=1, description="steps")


@dataclass(frozen=True)
class Progress:
    """Where the growth is; `loss` is the last step's, per counted token."""

    stage: str
    step: int
    steps: int
    loss: float
    tokens: int


@dataclass(frozen=True)
class Material:
    """What training needs: the cut model, its tokenizer, and the rows of both kinds of dialogue in its ids."""

    model: Any
    tokenizer_json: str
    dialogues: list[Row]
    majority: list[Row]


def grow(settings: GrowSettings, *, progress: Callable[[Progress], None]) -> dict[str, Any]:
    """The whole recipe, from the package to the finished model; returns (and writes as growth.json) what was done."""
    from online_trainer.bootstrap.source import fetch_weights, load_source

    same_settings(settings)
    return grow_from(
        load_source(settings.source or fetch_weights(settings.lock, settings.cache)),
        settings,
        progress=progress,
    )


def grow_from(
    source: Source, settings: GrowSettings, *, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """The recipe from the source model on."""
    from online_trainer.bootstrap.supervised import Learner, run_stage

    began = time.monotonic()
    work = settings.out / WORK
    work.mkdir(parents=True, exist_ok=True)
    material = prepare(source, settings)
    learner = Learner(material.model, bfloat16=has_bfloat16(cpu_flags()), workers=os.cpu_count() or 1)
    state = work / "state.pt"
    if state.exists():
        learner.load(state)

    def after(stage: Stage, done: int, loss: float, tokens: int) -> None:
        progress(Progress(stage.name, done, stage.steps, loss, tokens))
        if done == stage.steps:
            save_model(learner.model, material.tokenizer_json, work / stage.name)
        if done % settings.checkpoint_every == 0 or done == stage.steps:
            learner.save(state)

    for stage in plan(settings):
        run_stage(learner, stage, batches_of(stage, material, settings=settings), after=after)
    save_model(learner.model, material.tokenizer_json, settings.out)
    record = describe(settings, learner, seconds=time.monotonic() - began)
    (settings.out / "growth.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def same_settings(settings: GrowSettings) -> None:
    """Remember settings and data, and refuse to go on with others: halves of two recipes are neither."""
    work = settings.out / WORK
    work.mkdir(parents=True, exist_ok=True)
    kept, now = work / "settings.json", json.dumps(begun_with(settings), indent=2)
    if kept.exists() and kept.read_text(encoding="utf-8") != now:
        raise ValueError(f"{work} holds a growth begun with other settings; remove it or use another folder")
    kept.write_text(now, encoding="utf-8")


def begun_with(settings: GrowSettings) -> dict[str, Any]:
    """Everything the finished model follows from, apart from the code."""
    files = [path for path in (settings.dialogues, settings.majority) if path is not None]
    places = {"dialogues", "majority", "out", "source", "lock", "cache", "checkpoint_every"}
    return {
        "settings": settings.model_dump(mode="json", exclude=places),
        "data": [sha256(path.read_bytes()).hexdigest() for path in files],
    }


def plan(settings: GrowSettings) -> list[Stage]:
    from online_trainer.bootstrap.supervised import Stage

    stages = [
        Stage(REPEATS, settings.repeat_steps, settings.peak, floor=1.0),
        Stage(DIALOGUES, settings.dialogue_steps, settings.peak),
        Stage(MAJORITY, settings.majority_steps if settings.majority else 0, settings.majority_peak),
    ]
    return [stage for stage in stages if stage.steps]


def prepare(source: Source, settings: GrowSettings) -> Material:
    """Spell the dialogues with the source's tokenizer, and cut model and vocabulary down to what they use."""
    from online_trainer.bootstrap import cut
    from online_trainer.bootstrap.dialogues import read_dialogues, render, renumbered
    from tools.template import TEMPLATES
    from tools.toolbox import load_tool

    whole = cut.add_control_tokens(source.tokenizer_json, CONTROL)
    template = TEMPLATES[settings.template](whole)
    tools = [load_tool(spec) for spec in settings.tools]
    files = [path for path in (settings.dialogues, settings.majority) if path is not None]
    rows = [[render(dialogue, template, tools) for dialogue in read_dialogues(path)] for path in files]
    vocabulary = cut.cut_vocabulary(whole, {number for kind in rows for row in kind for number in row.ids})
    model = cut.cut_model(source.model, vocabulary.origins, layers=settings.layers)
    first, *rest = [renumbered(kind, vocabulary.numbers) for kind in rows]
    return Material(model, vocabulary.tokenizer_json, first, rest[0] if rest else [])


def batches_of(stage: Stage, material: Material, *, settings: GrowSettings) -> Callable[[int], Batch]:
    """A stage's batches by step: all repeats at first, later dialogues with some repeats among them."""
    import torch

    from online_trainer.bootstrap.dialogues import plan_batches, to_batch
    from online_trainer.bootstrap.repeats import repeat_batch
    from online_trainer.bootstrap.supervised import step_generator

    config = material.model.config
    rows = {REPEATS: [], DIALOGUES: material.dialogues, MAJORITY: material.majority}[stage.name]
    planned: list[list[int]] = []
    while rows and len(planned) < stage.steps:
        generator = step_generator(settings.seed, f"{stage.name} order", len(planned))
        planned += plan_batches([len(row.ids) for row in rows], tokens=settings.tokens, generator=generator)

    def batch(step: int) -> Batch:
        generator = step_generator(settings.seed, stage.name, step)
        if stage.name == REPEATS or float(torch.rand((), generator=generator)) < REPEAT_SHARE:
            return repeat_batch(
                config.vocab_size, rows=REPEAT_ROWS, length=REPEAT_TOKENS, generator=generator
            )
        return to_batch([rows[number] for number in planned[step]], config.pad_token_id)

    return batch


def save_model(model: Any, tokenizer_json: str, folder: Path) -> None:
    """The model as bfloat16 safetensors with everything Transformers and vLLM need to load it."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER, indent=2) + "\n", encoding="utf-8")


TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def describe(settings: GrowSettings, learner: Learner, *, seconds: float) -> dict[str, Any]:
    """What the model card quotes; `seconds` is this run's, so a part of the whole if it was resumed."""
    return {
        **begun_with(settings),
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "losses": learner.losses,
        "steps": learner.done,
        "seconds": round(seconds, 1),
        "cores": os.cpu_count(),
        "bfloat16": learner.bfloat16,
    }
