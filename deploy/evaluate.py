"""Held-out success of one version: tasks never used in training, sampled in a batch outside the engine.

The same seeds give the same draws for every version, so two versions are compared task by task. Run as
`python -m deploy.evaluate`, in a process of its own: the models it loads leave with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.intervals import Interval, mean_interval
from feedback.agent_file import AgentFile, load_agent_file

if TYPE_CHECKING:
    from online_trainer.sampler import SampledTurn

SEED_STRIDE = 1_000_003


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


def evaluate(
    agent: AgentFile, adapter: Path | None, *, tasks: int, samples: int, seed: int, temperature: float = 1.0
) -> Evaluation:
    """Sample every task `samples` times under `adapter` (None = the base). ManifestError on a damaged folder."""
    from online_trainer.sampler import BatchedSampler
    from tools.template import load_template
    from tools.toolbox import Toolbox, ToolLimits

    template = load_template(agent.model.template, agent.model.path)
    limits = ToolLimits(agent.limits.tool_s, agent.limits.tool_output_tokens)
    specs = [spec for spec in agent.tools if isinstance(spec, str)]
    toolbox = Toolbox.load(specs, limits, lambda text: len(template.user(text)))
    sampler = BatchedSampler(
        load_version(agent, adapter),
        template,
        temperature=temperature,
        max_new_tokens=agent.model.max_completion,
        max_context=agent.model.max_context,
    )
    numbered = [(task, sample) for task in range(tasks) for sample in range(samples)]
    desks = [Desk(agent, template, toolbox, task_seed=task) for task, _ in numbered]
    sampler.run(desks, seeds=[seed * SEED_STRIDE + task * 101 + sample for task, sample in numbered])
    won = [float(desk.episode.success()) for desk in desks]
    return Evaluation(
        tasks=tasks,
        samples=samples,
        seed=seed,
        temperature=temperature,
        success=tuple(sum(won[start : start + samples]) / samples for start in range(0, len(won), samples)),
        calls=sum(desk.calls for desk in desks),
        faulty_calls=sum(desk.faulty for desk in desks),
    )


def load_version(agent: AgentFile, adapter: Path | None) -> Any:
    """The base model in float32, under a verified adapter when one is named."""
    import torch

    from feedback.manifest import verify
    from online_trainer.policy import load_base

    base = load_base(agent.model.path, dtype=torch.float32)
    if adapter is None:
        return base
    from peft import PeftModel

    verify(adapter)
    return PeftModel.from_pretrained(base, adapter).eval()


def main(
    agent_file: Annotated[Path, typer.Option("--agent", help="agent file")],
    out: Annotated[Path, typer.Option("--json", help="where the result is written")],
    adapter: Annotated[Path | None, typer.Option(help="adapter folder; none = the base model")] = None,
    tasks: Annotated[int, typer.Option(min=1)] = 200,
    samples: Annotated[int, typer.Option(min=1)] = 1,
    seed: int = 0,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 = greedy")] = 1.0,
    threads: Annotated[int, typer.Option(min=0, help="0 = as torch likes")] = 0,
) -> None:
    """Measure one version on held-out tasks."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    found = evaluate(
        load_agent_file(agent_file), adapter, tasks=tasks, samples=samples, seed=seed, temperature=temperature
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    typer.run(main)
