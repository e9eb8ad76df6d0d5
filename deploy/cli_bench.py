"""`ratchet bench …`: the published figures, measured anew and written as JSON."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.terminal import read_settings

bench = typer.Typer(help="Measure what the project claims.", no_args_is_help=True)

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")]


@bench.callback()
def figures() -> None:
    """Measure what the project claims."""


@bench.command()
def canary(
    runs: Annotated[int, typer.Option(min=1, help="Simulated canaries a scenario.")] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 11,
    path: Json = None,
) -> None:
    """False verdicts, speed, power and damage of the agent file's canary, by simulation."""
    from deploy.canary.bench import measure
    from feedback.agent_file import load_agent_file

    desk = load_agent_file(read_settings(None).agent_file).canary
    found: dict[str, float] = {}
    for key, value in measure(desk, runs=runs, seed=seed):
        found[key] = value
        typer.echo(f"{key:<48} {value:.4g}")
        if path is not None:
            path.write_text(json.dumps(found | {"runs": runs, "seed": seed}, indent=2) + "\n")
