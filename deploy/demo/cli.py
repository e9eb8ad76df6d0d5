"""`ratchet demo`: the options, and the exit codes 0 (done), 1 (it failed, in one line), 2 (bad input)."""

from pathlib import Path
from typing import Annotated

import typer

from deploy.terminal import fail, faults_end_it, stop_signals_interrupt

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    short: Annotated[
        bool, typer.Option("--short", help="Minutes: every part once, no claim about learning.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="More episodes, three samples a held-out task.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of users, noise and held-out draws.")] = 0,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Where the summary is written as JSON.")
    ] = None,
    exit_when_done: Annotated[bool, typer.Option("--exit", help="End the stack at the end.")] = False,
) -> None:
    """Simulated travel-desk users teach an agent on the real stack; then held-out tasks say whether it learned.

    It starts from nothing in RATCHET_HOME (default .ratchet), writes demo/report.html there, and leaves the stack up
    for a conversation until Ctrl-C.
    """
    from rich.console import Console

    from deploy.demo.children import ChildFailed
    from deploy.demo.home import HomeTaken
    from deploy.demo.run import DemoFailed, DemoOptions, run
    from deploy.demo.tail import AdapterMissing
    from feedback.bus import BusError

    if short and long:
        fail("--short and --long exclude each other", code=2)
    if json_path is not None and not json_path.parent.is_dir():
        fail(f"--json: there is no folder {json_path.parent}", code=2)
    options = DemoOptions(
        short=short, long=long, seed=seed, json_path=json_path, exit_when_done=exit_when_done
    )
    with stop_signals_interrupt(), faults_end_it():
        try:
            run(options, Console())
        except HomeTaken as error:
            fail(str(error), code=2)
        except (DemoFailed, ChildFailed, AdapterMissing, BusError) as error:
            fail(str(error), code=1)
