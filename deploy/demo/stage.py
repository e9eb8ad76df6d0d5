"""What the person watching sees: one screen that is redrawn, or plain lines where there is no terminal."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from feedback.schemas import Decision

LINE_EVERY_S = 15.0
DECISIONS = tuple(decision.value for decision in Decision)


@dataclass
class Scene:
    """The latest facts; written by the stages, read by the screen."""

    stage: str = "starting"
    done: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[str, int] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


class Screen:
    """Draws a Scene. `update` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=1.0)
        self._spoke_at = self._began_at = 0.0
        self._stage = ""

    def render(self, scene: Scene) -> RenderableType:
        """The whole screen."""
        if scene.stage != self._stage:
            self._stage = scene.stage
            self._bar.reset(self._task, description=scene.stage, total=1.0)
        self._bar.update(self._task, completed=scene.done)
        return Group(self._bar, table(scene))

    def line(self, scene: Scene) -> None:
        """One plain line, at most every quarter of a minute or when the stage changes."""
        now = time.monotonic()
        if scene.stage != self._stage:
            self._stage, self._began_at = scene.stage, now
        elif now - self._spoke_at < LINE_EVERY_S:
            return
        self._spoke_at = now
        left = eta(now - self._began_at, scene.done)
        said = " · ".join(f"{name} {value}" for name, value in (*rows(scene), ("ETA", left)))
        self.console.print(f"{scene.stage} {scene.done:.0%} · {said}", soft_wrap=True, highlight=False)


def rows(scene: Scene) -> list[tuple[str, str]]:
    """Name and value of every figure, in order; the same ones at every moment."""
    counted, split, canary = scene.counters, scene.status.get("split") or {}, scene.status.get("canary") or {}
    trial = f"{canary.get('version')}, {canary.get('phase')}" if canary else "none"
    return [
        ("episodes", str(counted.get("episodes", 0))),
        ("rated", str(counted.get("rated", 0))),
        ("failed", str(counted.get("failed", 0))),
        ("updates", ", ".join(f"{scene.updates.get(name, 0)} {name}" for name in DECISIONS)),
        ("champion", str((split.get("champion") or {}).get("version", "?"))),
        ("candidate", trial),
        ("live share", f"{scene.status.get('share') or 0:.0%}"),
        ("evidence", evidence(canary)),
    ]


def eta(spent_s: float, done: float) -> str:
    """What is left of a stage at its pace so far, as minutes and seconds."""
    if done <= 0 or spent_s < 1:
        return "?"
    minutes, seconds = divmod(round(spent_s * (1 - min(1.0, done)) / done), 60)
    return f"{minutes}:{seconds:02d}"


def evidence(canary: Mapping[str, Any]) -> str:
    """Both bets against their bars, in powers of ten."""
    said = []
    for side in ("better", "worse"):
        facts = (canary.get("evidence") or {}).get(side) or {}
        if facts:
            said.append(f"{side} 10^{facts['log10_e']:.2f} of 10^{facts['log10_bar']:.2f}")
    return ", ".join(said) or "none yet"


def table(scene: Scene) -> Table:
    """The figures as a small table."""
    drawn = Table.grid(padding=(0, 2))
    for name, value in rows(scene):
        drawn.add_row(f"[dim]{name}[/]", value)
    return drawn
