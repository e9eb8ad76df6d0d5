"""`ratchet bench …`: the published figures, measured anew and written as JSON."""

import json
from collections.abc import Iterable
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
def stream(
    episodes: Annotated[int, typer.Option(min=10, help="Of three records each.")] = 5_000,
    ratings: Annotated[int, typer.Option(min=1, help="Ratings that are timed one by one.")] = 100,
    ids: Annotated[int, typer.Option(min=20_000, help="In the large state; published with ten million.")] = (
        10_000_000
    ),
    path: Json = None,
) -> None:
    """Rate of the join, time from a rating to its experience, cost of a large state; on a Kafka of its own."""
    import tempfile

    from deploy.bench.stream import Sizes, measure
    from deploy.stack.kafka_node import own_node
    from feedback.agent_file import load_agent_file

    settings = read_settings(None)
    agent = load_agent_file(settings.agent_file)
    sizes = Sizes(episodes=episodes, ratings=min(ratings, episodes), large=ids)
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        (Path(folder) / "kafka").mkdir()
        with own_node(Path(folder) / "kafka") as bootstrap:
            found = measure(bootstrap, agent, partitions=settings.partitions, home=Path(folder), sizes=sizes)
            _say(found, {"episodes": episodes, "ratings": ratings, "ids": ids}, path)


@bench.command()
def canary(
    runs: Annotated[int, typer.Option(min=1, help="Simulated canaries a scenario.")] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 11,
    path: Json = None,
) -> None:
    """False verdicts, speed, power and damage of the agent file's canary, by simulation."""
    from deploy.bench.canary import measure
    from feedback.agent_file import load_agent_file

    desk = load_agent_file(read_settings(None).agent_file).canary
    _say(measure(desk, runs=runs, seed=seed), {"runs": runs, "seed": seed}, path)


def _say(figures: Iterable[tuple[str, float]], made_with: dict[str, float], path: Path | None) -> None:
    """Each figure as soon as it is known, here and in the file."""
    found: dict[str, float] = {}
    for key, value in figures:
        found[key] = value
        typer.echo(f"{key:<48} {value:.4g}")
        if path is not None:
            path.write_text(json.dumps(found | made_with, indent=2) + "\n")
