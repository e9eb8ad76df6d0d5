"""`ratchet bootstrap …`: models to start from. Only parsing and display happen here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make the models that learning starts from.", no_args_is_help=True)

DESK_TOOLS = [
    "tools.travel:flights",
    "tools.travel:hotels",
    "tools.travel:weather",
    "tools.calculator:calculate",
]


@app.callback()
def bootstrap() -> None:
    """Make the models that learning starts from."""


@app.command()
def grow(
    dialogues: Annotated[Path, typer.Option(exists=True, help="JSON lines of careful or mixed teachers.")],
    out: Annotated[
        Path, typer.Option(help="Folder of the finished model; an unfinished growth there goes on.")
    ],
    majority: Annotated[
        Path | None, typer.Option(exists=True, help="JSON lines of the teachers it ends with.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(exists=True, help="A GGUF file instead of the package.")
    ] = None,
    lock: Annotated[Path, typer.Option(help="Lock file of the source package.")] = Path(
        "deploy/locks/grow.txt"
    ),
    cache: Annotated[Path, typer.Option(help="Where the source package is kept.")] = Path(
        ".ratchet/cache/grow"
    ),
    tool: Annotated[list[str], typer.Option(help="module:name, in the agent file's order.")] = DESK_TOOLS,
    template: Annotated[str, typer.Option(help="How conversations are spelled.")] = "desk",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    repeat_steps: Annotated[int, typer.Option(min=0)] = 110,
    dialogue_steps: Annotated[int, typer.Option(min=0)] = 650,
    majority_steps: Annotated[int, typer.Option(min=0)] = 170,
    tokens: Annotated[int, typer.Option(min=512, help="Padded tokens a step.")] = 4096,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line instead of a progress bar.")
    ] = False,
) -> None:
    """Grow the desk model: cut it out of SmolLM2-135M-Instruct, then teach it the dialogues."""
    from online_trainer.bootstrap.display import Bar, JsonLines
    from online_trainer.bootstrap.grow import GrowSettings
    from online_trainer.bootstrap.grow import grow as run

    settings = GrowSettings(
        dialogues=dialogues,
        majority=majority,
        out=out,
        source=source,
        lock=lock,
        cache=cache,
        tools=tuple(tool),
        template=template,
        seed=seed,
        repeat_steps=repeat_steps,
        dialogue_steps=dialogue_steps,
        majority_steps=majority_steps,
        tokens=tokens,
    )
    display = JsonLines() if as_json else Bar()
    with display:
        record = run(settings, progress=display.show)
    typer.echo(
        json.dumps(record) if as_json else f"grown: {out} ({record['parameters'] / 1e6:.1f} M parameters)"
    )
