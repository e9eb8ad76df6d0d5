"""The command line `ratchet`. Parsing and display only; every verb's work is elsewhere and imported when it runs.

Exit codes: 0 done, 1 failed, 2 bad input, 3 nothing answers.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.bench.cli import bench
from deploy.cli_canary import ask_deploy, canary
from deploy.cli_replay import replay
from deploy.terminal import (
    AsJson,
    Profile,
    answer,
    fail,
    faults_end_it,
    read_settings,
    rows_of,
    stop_signals_interrupt,
    table,
)
from online_trainer.bootstrap.cli import app as bootstrap

if TYPE_CHECKING:
    from deploy.stack.up import Ready, Stack

app = typer.Typer(
    help="Serve a tool-using agent, let its users teach it, ship only what is proven better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(canary, name="canary")
app.add_typer(bootstrap, name="bootstrap")
app.add_typer(bench, name="bench")
app.command()(replay)

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def main() -> None:
    """Entry point: reads `.env` first, so that every verb and every process it starts sees the same settings."""
    if Path(".env").exists():
        from dotenv import load_dotenv

        load_dotenv(".env")
    app()


@app.command()
def up(
    profile: Profile = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once everything is well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start every part that is not named by an address, and stay until Ctrl-C."""
    from deploy.stack.up import UpError, start

    settings = read_settings(profile)
    with stop_signals_interrupt(), faults_end_it():
        began = time.monotonic()
        fresh_key = not settings.api_keys and not (settings.home / "api-key").exists()
        stack = start(settings, lambda ready: _say_ready(ready, as_json=as_json))
        try:
            _say_up(stack, time.monotonic() - began, fresh_key=fresh_key, as_json=as_json)
            if detach:
                return
            _watch(stack)
        except KeyboardInterrupt:
            # The terminal may be gone (SIGHUP); the parts must end all the same.
            with suppress(OSError):
                typer.echo("stopping …", err=True)
            stack.stop()
        except UpError:
            stack.stop()
            raise


@app.command()
def down(as_json: AsJson = False) -> None:
    """End everything that `ratchet up` started for this home, whatever happened to it meanwhile."""
    from deploy.stack.supervision import marked_processes, stop_all

    settings = read_settings(None)
    count = len(marked_processes(settings.home))
    killed = stop_all(settings.home)
    left = [process.pid for process in marked_processes(settings.home)]
    text = f"ended {count} processes" + (f"; {len(killed)} had to be killed" if killed else "")
    answer(
        {"ended": count, "killed": killed, "left": left},
        text if count else "nothing was running",
        as_json=as_json,
    )
    if left:
        fail(f"still running: {left}", code=1)


@app.command()
def status(as_json: AsJson = False) -> None:
    """What runs, what is live, what is being tried. Exit 1 if a part is unwell, 3 if nothing runs."""
    from deploy.stack.overview import read_status, render_status

    found = read_status(read_settings(None))
    answer(found, render_status(found), as_json=as_json)
    if not found["running"]:
        raise typer.Exit(3)
    if any(not part["well"] for part in found["parts"]):
        raise typer.Exit(1)


@app.command()
def doctor(profile: Profile = None, as_json: AsJson = False) -> None:
    """Check Java, memory, ports, number format and model, and say what to do. Exit 1 if something would stop `up`."""
    from deploy.stack.doctor import Level, examine
    from deploy.stack.machine import look
    from deploy.stack.up import read_plan

    settings = read_settings(profile)
    with faults_end_it():
        agent, plan = read_plan(settings)
    findings = list(examine(settings, agent, plan, look()))
    rows = [
        {"about": each.about, "level": str(each.level), "said": each.said, "todo": each.todo}
        for each in findings
    ]
    text = "\n".join(
        f"{each.level:8}{each.about:14} {each.said}" + (f" → {each.todo}" if each.todo else "")
        for each in findings
    )
    answer({"findings": rows}, text, as_json=as_json)
    if any(each.level is Level.FAULT for each in findings):
        raise typer.Exit(1)


@app.command()
def chat(
    address: Annotated[str | None, typer.Option(help="Where serving listens.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The agent's name; the first one served if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Talk to the agent; /good and /bad rate its last answer."""
    from openai import OpenAI
    from rich.console import Console

    from deploy.calls import call, read_key
    from deploy.chat import Chat
    from deploy.stack.plan import serving_address

    settings = read_settings(None)
    where = address or serving_address(settings)
    with faults_end_it():
        key = read_key(settings.home)
        named = model or call("GET", f"{where}/v1/models", key=key)["data"][0]["id"]
        with OpenAI(base_url=f"{where}/v1", api_key=key) as client:
            talk = Chat(client, Console(), model=named, address=where, as_json=as_json)
            talk.run(lambda: input("› " if sys.stdin.isatty() else ""))


@app.command()
def rate(
    response_id: Annotated[str, typer.Argument(help="chatcmpl-…, as the reply named itself.")],
    value: Annotated[str, typer.Argument(help="good, bad, or a number.")],
    name: Annotated[str, typer.Option(help="A metric of the agent file.")] = "user_rating",
    comment: Annotated[str, typer.Option(help="Why.")] = "",
    as_json: AsJson = False,
) -> None:
    """Rate one answer."""
    from deploy.calls import read_key
    from deploy.chat import rate as send
    from deploy.stack.plan import serving_address

    settings = read_settings(None)
    with faults_end_it():
        reply = send(
            serving_address(settings),
            read_key(settings.home),
            response_id=response_id,
            name=name,
            value=_rating(value),
            comment=comment,
        )
    answer(reply, f"{reply.get('id', '')} {reply.get('status', 'stored')}", as_json=as_json)


@app.command(context_settings=PASS_THROUGH)
def demo(context: typer.Context) -> None:
    """The whole loop on simulated users: before, after and control. `ratchet demo --help` lists its options."""
    from deploy.demo.cli import app as run

    run(context.args, prog_name="ratchet demo")


@app.command(name="stub-engine", context_settings=PASS_THROUGH)
def stub_engine(context: typer.Context) -> None:
    """A scripted stand-in for a vLLM server, for benchmarks and tests."""
    os.execv(sys.executable, [sys.executable, "-m", "serving.engines.stub", *context.args])


@app.command()
def versions(as_json: AsJson = False) -> None:
    """Every numbered version and what became of it."""
    found = ask_deploy("GET", "/v1/versions")
    answer(
        found, table(rows_of(found), ("version", "parent", "source", "champion", "refused")), as_json=as_json
    )


def _rating(value: str) -> bool | float:
    words = {"good": True, "bad": False, "true": True, "false": False}
    if value in words:
        return words[value]
    try:
        return float(value)
    except ValueError:
        fail(f"value: {value!r} is neither good, bad nor a number", code=2)


def _watch(stack: "Stack") -> None:
    """Stay with the stack; say when a part was started again, and end when one cannot be."""
    while True:
        for line in stack.check():
            typer.echo(line, err=True)
        time.sleep(1)


def _say_ready(ready: "Ready", *, as_json: bool) -> None:
    part = ready.part
    if as_json:
        typer.echo(
            json.dumps({"part": part.name, "ready_s": round(ready.after_s, 1), "address": part.health})
        )
        return
    typer.echo(f"  {part.name:9} well after {ready.after_s:6.1f} s   {part.health}")


def _say_up(stack: "Stack", took_s: float, *, fresh_key: bool, as_json: bool) -> None:
    from deploy.stack.plan import serving_address

    address, home = serving_address(stack.settings), stack.settings.home
    if as_json:
        typer.echo(json.dumps({"up_s": round(took_s, 1), "serving": address, "home": str(home)}))
        return
    keys = "keys as RATCHET_API_KEYS says" if stack.settings.api_keys else f"key in {home / 'api-key'}"
    typer.echo(f"up after {took_s:.0f} s: {address}/v1, logs in {home / 'log'}, {keys}")
    if fresh_key:
        typer.echo(f"your key, shown once: {(home / 'api-key').read_text().strip()}")
