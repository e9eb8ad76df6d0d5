"""How a growth is watched: a bar a stage for people, one JSON object a line for programs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import orjson
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from online_trainer.bootstrap.grow import Progress


class Bar:
    """One line a stage: steps, loss, time left."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        self._tasks["source"] = self._bars.add_task("source", total=None, loss="reading and cutting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, now: Progress) -> None:
        if now.stage not in self._tasks:
            self._bars.update(self._tasks["source"], total=1, completed=1, loss="done")
            self._tasks[now.stage] = self._bars.add_task(now.stage, total=now.steps, loss="")
        self._bars.update(self._tasks[now.stage], completed=now.step, loss=f"loss {now.loss:.4f}")


class JsonLines:
    """`{"stage": …, "step": …, "steps": …, "loss": …, "tokens": …, "elapsed_s": …}` after each step."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        return None

    def show(self, now: Progress) -> None:
        elapsed = round(time.monotonic() - self._began, 1)
        typer.echo(orjson.dumps({**vars(now), "elapsed_s": elapsed}).decode())
