"""Synthetic travel-desk dialogues as JSON lines: what the desk model is grown on.

Invariant: line i of (seed, mixture) is always the same dialogue, made of `train` tasks only.
"""

import json
import random
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from deploy.simulation.conduct import Mixture, Teacher, conduct
from deploy.simulation.reactions import PATIENCE, courtesy, reaction
from deploy.simulation.travel import faults, truth
from deploy.simulation.world import SYSTEM, task

STRIDE = 10_000_000  # task seeds of two dialogue seeds never meet


class Choice(StrEnum):
    careful = "careful"
    mixed = "mixed"
    majority = "majority"


def dialogue(seed: int, index: int, *, mixture: Mixture) -> dict[str, Any]:
    """One dialogue: requests and the teacher's answers, with reactions in between."""
    draw = random.Random(f"dialogue:{mixture}:{seed}:{index}")
    wanted = task("train", seed * STRIDE + index)
    session = f"dialogue-{draw.getrandbits(64):016x}"
    manners = conduct(draw, mixture)
    teacher = Teacher(manners, session, draw)
    messages: list[dict[str, Any]] = []
    right, spare = True, PATIENCE - len(wanted.requests)
    for request in wanted.requests:
        messages.append({"role": "user", "content": request.text})
        messages += teacher.answer(request)
        wrong = faults(messages[-1]["content"], truth(request, session))
        right = right and not wrong
        reacted = reaction(draw, wrong) if spare else None
        if reacted:
            spare -= 1
            complains, words = reacted
            messages.append({"role": "user", "content": words})
            messages.append({"role": "assistant", "content": courtesy(draw, complains)})
    kinds = [request.kind for request in wanted.requests]
    about = {
        "seed": wanted.seed,
        "session": session,
        "kinds": kinds,
        "conducts": manners.named(),
        "right": right,
    }
    return {"system": SYSTEM, "messages": messages, "task": about}


def dialogues(count: int, seed: int, *, mixture: Mixture) -> Iterator[dict[str, Any]]:
    for index in range(count):
        yield dialogue(seed, index, mixture=mixture)


def write(
    count: Annotated[int, typer.Option(min=1, help="How many dialogues.")],
    out: Annotated[Path, typer.Option(help="JSON-lines file to write.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    conduct: Annotated[Choice, typer.Option(help="Whose habits the agent has.")] = Choice.mixed,
) -> None:
    """Write dialogues, one JSON object a line; the file appears only when it is whole."""
    part = out.with_name(f"{out.name}.part")
    made = dialogues(count, seed, mixture=conduct.value)
    console = Console(stderr=True)
    with part.open("w", encoding="utf-8") as lines:
        for made_one in track(
            made, "dialogues", total=count, console=console, disable=not sys.stderr.isatty()
        ):
            lines.write(json.dumps(made_one, ensure_ascii=False) + "\n")
    part.replace(out)


if __name__ == "__main__":
    typer.run(write)
