"""Work of the demo that loads models, each in a process of its own: held-out evaluation and the sabotaged adapter."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.evaluate import Evaluation

MOST_AT_ONCE = 4
"""Evaluations at a time, each with a model of its own and one thread."""


class ChildFailed(RuntimeError):
    """A helper process of the demo ended badly; the text has its last words."""


@dataclass(frozen=True)
class Children:
    """Starts them, with their output in `folder`."""

    folder: Path
    agent_file: Path
    kafka: str
    seed: int

    async def evaluate(
        self, versions: Mapping[str, str], *, tasks: int, samples: int
    ) -> dict[str, Evaluation]:
        """Held-out success of each version (`read_version` says how one is named). Raises ChildFailed."""
        cores = min(MOST_AT_ONCE, os.cpu_count() or 1, len(versions))
        parts = [dict(list(versions.items())[number::cores]) for number in range(cores)]
        measuring = [
            self._evaluate(f"heldout-{number}", part, tasks=tasks, samples=samples)
            for number, part in enumerate(parts)
        ]
        found = {name: one for part in await asyncio.gather(*measuring) for name, one in part.items()}
        return {name: found[name] for name in versions}

    async def _evaluate(
        self, child: str, versions: Mapping[str, str], *, tasks: int, samples: int
    ) -> dict[str, Evaluation]:
        out = self.folder / f"{child}.json"
        named = [part for name, where in versions.items() for part in ("--version", f"{name}={where}")]
        await self._run(
            child,
            *("-m", "deploy.evaluate", "--agent", str(self.agent_file), "--json", str(out), *named),
            *("--tasks", str(tasks), "--samples", str(samples)),
        )
        return {name: as_evaluation(raw) for name, raw in json.loads(out.read_text()).items()}

    async def sabotage(self, adapter: Path | None, out: Path) -> dict[str, Any]:
        """Train an adapter away from the champion until it is harmful; returns how harmful. Raises ChildFailed."""
        chosen = ("--adapter", str(adapter)) if adapter is not None else ()
        await self._run(
            "sabotage",
            *("-m", "deploy.demo.sabotage", "--agent", str(self.agent_file), "--out", str(out), *chosen),
            *("--seed", str(self.seed), "--kafka", self.kafka),
        )
        found: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
        return found

    async def _run(self, name: str, *arguments: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        # Beside a busy stack a second thread only waits for the first (measured: ten times slower).
        environment["OMP_NUM_THREADS"] = "1"
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            child = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=output, stderr=output, env=environment
            )
            try:
                code = await child.wait()
            except asyncio.CancelledError:
                child.kill()
                await child.wait()
                raise
        if code != 0:
            said = " ".join(log.read_text(errors="replace").split())[-300:]
            raise ChildFailed(f"{name} ended with {code}: {said}; see {log}")


def as_evaluation(raw: dict[str, Any]) -> Evaluation:
    """From its JSON form."""
    return Evaluation(**{**raw, "success": tuple(raw["success"])})
