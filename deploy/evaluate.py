"""Held-out success of one version: tasks never used in training, sampled in a batch outside the engine.

The same seeds give the same draws for every version, so two versions are compared task by task. Run as
`python -m deploy.evaluate`, in a process of its own: the models it loads leave with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.intervals import Interval, mean_interval
from feedback.agent_file import AgentFile, load_agent_file

if TYPE_CHECKING:
    from online_trainer.sampler import SampledTurn

SEED_STRIDE = 1_000_003
HELDOUT_SEED = 0
"""Of the draws: the same for every version ever measured, so that stored figures stay comparable."""


@dataclass(frozen=True)
class Evaluation:
    """Per task the mean success over its samples, and how the calls fared."""

    tasks: int
    samples: int
    seed: int
    temperature: float
    success: tuple[float, ...]
    calls: int
    faulty_calls: int

    def interval(self) -> Interval:
        """Mean success over tasks."""
        return mean_interval(self.success, seed=self.seed)

    @property
    def faulty_share(self) -> float:
        """Share of the calls that were malformed, unknown or wrongly argued."""
        return self.faulty_calls / self.calls if self.calls else 0.0


class Desk:
    """The other side of one held-out conversation: its user, and the tools the agent calls."""

    def __init__(self, agent: AgentFile, template: Any, toolbox: Any, *, task_seed: int) -> None:
        from deploy.simulation.heldout import HeldoutEpisode
        from tools.template import signatures

        self.episode = HeldoutEpisode(task_seed)
        self.calls = self.faulty = 0
        self._agent, self._template, self._toolbox = agent, template, toolbox
        self._signatures = signatures(toolbox.tools)
        self._rounds, self._said = 0, list[str]()

    def __call__(self, turn: SampledTurn | None) -> list[int] | None:
        """What follows a turn, in ids; None when the conversation is over."""
        template = self._template
        if turn is None:
            return [*template.start(self._agent.system, self._toolbox.tools), *self._ask()]
        from tools.parse import parse_turn

        parsed = parse_turn(template.decode(turn.token_ids), self._agent.model.template, self._signatures)
        if parsed.text.strip():
            self._said.append(parsed.text.strip())
        closing = template.close_turn(turn.token_ids)
        if parsed.calls and self._rounds < self._agent.limits.rounds:
            self._rounds += 1
            return [*closing, *self._results(parsed.calls), *template.open_turn()]
        self.episode.reply("\n\n".join(self._said))
        self._rounds, self._said = 0, []
        return None if self.episode.user_message() is None else [*closing, *self._ask()]

    def _ask(self) -> list[int]:
        return [*self._template.user(self.episode.user_message() or ""), *self._template.open_turn()]

    def _results(self, calls: Sequence[Any]) -> list[int]:
        ids: list[int] = []
        for call in calls:
            result = asyncio.run(self._toolbox.run(call, episode_id=self.episode.episode_id, timeout_s=10.0))
            self.calls += 1
            self.faulty += result.fault is not None
            ids += self._template.tool_result(result.name, result.content)
        return ids


@dataclass(frozen=True)
class Version:
    """What is measured: an adapter folder (None = the base model), sampled at a temperature (0 = greedy)."""

    name: str
    adapter: Path | None = None
    temperature: float = 1.0


def evaluate(
    agent: AgentFile, versions: Sequence[Version], *, tasks: int, samples: int, seed: int = HELDOUT_SEED
) -> Iterator[tuple[str, Evaluation]]:
    """Sample every task `samples` times (greedy: once) under each version. ManifestError on a damaged folder."""
    import torch

    from online_trainer.policy import load_base

    # The format of every held-out figure: the same on all machines.
    base = load_base(agent.model.path, dtype=torch.float32)
    for version in versions:
        with under_adapter(base, version.adapter) as model:
            found = conduct_of(agent, model, version, tasks=tasks, samples=samples, seed=seed)
        yield version.name, found


def conduct_of(
    agent: AgentFile, model: Any, version: Version, *, tasks: int, samples: int, seed: int = HELDOUT_SEED
) -> Evaluation:
    """What a causal model does on the held-out tasks, at the version's temperature."""
    from tools.template import load_template
    from tools.toolbox import Toolbox, ToolLimits

    template = load_template(agent.model.template, agent.model.path)
    limits = ToolLimits(agent.limits.tool_s, agent.limits.tool_output_tokens)
    toolbox = Toolbox.load(agent.tools, limits, template.count)
    times = samples if version.temperature else 1
    desks = [[Desk(agent, template, toolbox, task_seed=task) for _ in range(times)] for task in range(tasks)]
    _sample(agent, model, template, desks, temperature=version.temperature, seed=seed)
    return _count(desks, seed=seed, temperature=version.temperature)


def _sample(
    agent: AgentFile,
    model: Any,
    template: Any,
    desks: Sequence[Sequence[Desk]],
    *,
    temperature: float,
    seed: int,
) -> None:
    from online_trainer.sampler import BatchedSampler

    sampler = BatchedSampler(
        model,
        template,
        temperature=temperature,
        max_new_tokens=agent.model.max_completion,
        max_context=agent.model.max_context,
    )
    numbered = [
        (desk, seed * SEED_STRIDE + task * 101 + sample)
        for task, row in enumerate(desks)
        for sample, desk in enumerate(row)
    ]
    sampler.run([desk for desk, _ in numbered], seeds=[number for _, number in numbered])


def _count(desks: Sequence[Sequence[Desk]], *, seed: int, temperature: float) -> Evaluation:
    every = [desk for row in desks for desk in row]
    return Evaluation(
        tasks=len(desks),
        samples=len(desks[0]),
        seed=seed,
        temperature=temperature,
        success=tuple(sum(desk.episode.success() for desk in row) / len(row) for row in desks),
        calls=sum(desk.calls for desk in every),
        faulty_calls=sum(desk.faulty for desk in every),
    )


@contextmanager
def under_adapter(base: Any, adapter: Path | None) -> Iterator[Any]:
    """The base model under a verified adapter, and bare again afterwards."""
    if adapter is None:
        yield base
        return
    from peft import PeftModel

    from feedback.manifest import verify

    verify(adapter)
    model = PeftModel.from_pretrained(base, adapter).eval()
    try:
        yield model
    finally:
        model.unload()


def main(
    agent_file: Annotated[Path, typer.Option("--agent", help="agent file")],
    out: Annotated[Path, typer.Option("--json", help="where the results are written")],
    version: Annotated[
        list[str], typer.Option(help="NAME=FOLDER of an adapter, NAME= for the base, NAME=greedy for it at 0")
    ],
    tasks: Annotated[int, typer.Option(min=1)] = 200,
    samples: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Measure versions on the same held-out tasks, one after the other; the file grows as they are done."""
    found: dict[str, Any] = {}
    out.parent.mkdir(parents=True, exist_ok=True)
    versions = [read_version(text) for text in version]
    for name, evaluation in evaluate(load_agent_file(agent_file), versions, tasks=tasks, samples=samples):
        found[name] = asdict(evaluation)
        out.write_text(json.dumps(found))


def read_version(text: str) -> Version:
    """`NAME=`, `NAME=greedy` or `NAME=FOLDER`."""
    name, _, where = text.partition("=")
    if where == "greedy":
        return Version(name, temperature=0.0)
    return Version(name, adapter=Path(where) if where else None)


if __name__ == "__main__":
    typer.run(main)
