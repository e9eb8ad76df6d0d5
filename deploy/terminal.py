"""What every verb of the command line shares: settings, exit codes, and answers as text or JSON.

Exit codes: 0 done, 1 failed, 2 bad input, 3 nothing answers. A known fault is one line on stderr, never a traceback.
"""

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from deploy.stack.plan import StackSettings

AsJson = Annotated[bool, typer.Option("--json", help="One JSON value instead of text.")]
Profile = Annotated[str | None, typer.Option(help="desk, or another folder of deploy/profiles.")]


def read_settings(profile: str | None) -> "StackSettings":
    """From the environment; a profile names the agent file. A wrong value ends with the variable's name."""
    from pydantic import ValidationError

    from deploy.stack.plan import PROFILES, StackSettings

    try:
        settings = StackSettings()
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        fail(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", code=2)
    if profile is None:
        return settings
    if not (PROFILES / profile / "agent.yaml").exists():
        known = ", ".join(sorted(path.parent.name for path in PROFILES.glob("*/agent.yaml")))
        fail(f"--profile: no profile {profile!r}; there are {known}", code=2)
    return settings.model_copy(update={"agent_file": PROFILES / profile / "agent.yaml"})


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end `up` as Ctrl-C does, so that what it started ends with it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def faults_end_it() -> Iterator[None]:
    """A known fault is one line and an exit code, never a traceback."""
    from deploy.calls import CallError
    from deploy.stack.up import UpError
    from feedback.agent_file import AgentFileError
    from serving.auth import KeyFileError

    try:
        yield
    except (AgentFileError, KeyFileError) as error:
        fail(str(error), code=2)
    except CallError as error:
        fail(str(error), code=error.code)
    except UpError as error:
        fail(str(error), code=1)


@contextmanager
def working(said: str) -> Iterator[None]:
    """A spinner beside `said` while the work takes, where a person looks on."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(said):
        yield


def answer(value: Any, text: str, *, as_json: bool) -> None:
    """Say it."""
    typer.echo(json.dumps(value) if as_json else text)


def fail(said: str, *, code: int) -> NoReturn:
    """One line, and out."""
    typer.echo(f"ratchet: {said}", err=True)
    raise typer.Exit(code)


def rows_of(found: Any) -> list[dict[str, Any]]:
    """The rows of OpenAI's list shape, or of a plain list."""
    rows = found.get("data", []) if isinstance(found, dict) else found
    return list(rows)


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Columns that no row has are left out."""
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)]
    cells = [
        shown,
        *([str(row.get(name) if row.get(name) is not None else "-") for name in shown] for row in rows),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(shown))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
