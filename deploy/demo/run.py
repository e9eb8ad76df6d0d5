"""`ratchet demo`: a fresh stack, users who teach it, a sabotaged candidate, held-out tasks, and one story told twice.

Read `_play`: it is the whole of it. However the demo ends, the stack it started ends with it.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.demo import acts
from deploy.demo.children import Children
from deploy.demo.clients import read_clients
from deploy.demo.heldout import measure
from deploy.demo.home import fresh_home, own_agent_file
from deploy.demo.live import Performance
from deploy.demo.report import write_report
from deploy.demo.settle import settle
from deploy.demo.sizes import Sizes, choose_sizes
from deploy.demo.steering import Steering
from deploy.demo.summary import Inputs, series, shortcomings, summarise, table
from deploy.demo.tail import UpdateTail
from deploy.simulation.ledger import Ledger
from deploy.simulation.pool import UserPool
from deploy.simulation.talk import Talk
from deploy.stack import up
from deploy.stack.machine import look
from deploy.stack.plan import StackSettings, deploy_address, serving_address
from deploy.stack.supervision import resting
from feedback.agent_file import AgentFile, load_agent_file
from feedback.kafka import KafkaBus
from online_trainer.registry import Registry, RegistryDown
from serving.auth import ensure_key

SETTLE_S = 120.0


@dataclass(frozen=True)
class DemoOptions:
    """What a person may choose."""

    short: bool = False
    long: bool = False
    seed: int = 0
    json_path: Path | None = None
    exit_when_done: bool = False


class DemoFailed(RuntimeError):
    """The demo ran, and something came of it that must never be; the text says what."""


@dataclass(frozen=True)
class Setting:
    """Where the demo plays."""

    options: DemoOptions
    sizes: Sizes
    stack: StackSettings
    agent: AgentFile
    results: Path
    began: float


def run(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Play the demo and return its summary. Raises DemoFailed, UpError, HomeTaken, ChildFailed, AdapterMissing, AgentFileError."""
    began = time.monotonic()
    sizes = choose_sizes(short=options.short, long=options.long, has_bfloat16=look().has_bfloat16)
    # Its users have the key of its own home; an operator's ring would not know it.
    stack_settings = StackSettings().model_copy(update={"api_keys": ""})
    up.claim_home(stack_settings.home)
    results = fresh_home(stack_settings.home)
    agent_file = own_agent_file(stack_settings.agent_file, results / "agent.yaml", short=sizes.short)
    stack_settings = stack_settings.model_copy(update={"agent_file": agent_file})
    setting = Setting(options, sizes, stack_settings, load_agent_file(agent_file), results, began)
    stack = up.start(stack_settings, lambda ready: _say_well(console, ready))
    try:
        summary = asyncio.run(_play(setting, stack, console))
        if not options.exit_when_done:
            _stay(stack, setting, console)
    finally:
        stack.stop()
    if found := shortcomings(summary):
        raise DemoFailed("; ".join(found[:4]))
    return summary


async def _play(setting: Setting, stack: up.Stack, console: Console) -> dict[str, Any]:
    """From a healthy stack to a written report."""
    results, sizes, home = setting.results, setting.sizes, setting.stack.home
    key = ensure_key(home)
    kafka = stack.plan.environment["RATCHET_KAFKA"]
    bus = KafkaBus(kafka, client_id="demo")
    registry = Registry(stack.plan.environment["MLFLOW_TRACKING_URI"], setting.agent.agent)
    updates = UpdateTail(
        bus, home / "trainer" / "adapters", results / "heads", download=registry.download, away=RegistryDown
    )
    steering = Steering(deploy_address(setting.stack), key)
    children = Children(results, setting.stack.agent_file, kafka, setting.options.seed)
    talk = Talk(f"{serving_address(setting.stack)}/v1", key, model=setting.agent.agent)
    ledger = Ledger(results / "clients.jsonl")
    pool = UserPool(talk, ledger, seed=setting.options.seed, crowd=sizes.crowd)
    sabotage = None
    with Performance(pool, steering, stack, updates, console) as show:
        show.open_doors()
        if not sizes.short:
            await acts.learn(show, sizes)
            champion = await asyncio.to_thread(_champion, show, updates)
            sabotage = await acts.sabotage(show, sizes, children, champion=champion, out=results / "sabotage")
        else:
            await acts.end_by_hand(show, sizes)
        await show.close_doors()
        await talk.close()
        ledger.close()
        clients = read_clients(results / "clients.jsonl")
        settling = asyncio.create_task(settle(bus, clients, limit_s=SETTLE_S))
        facts = await show.keep_looking("the stream settles", settling)
        updates.counts()
        with resting(home, "trainer"):  # the head stays as it is, and its measuring has the cores
            measuring = asyncio.create_task(
                measure(setting.agent, facts, children, sizes=sizes, adapters=updates)
            )
            held = await show.keep_looking("held-out tasks", measuring, expected_s=sizes.heldout_s)
    updates.close()
    bus.close()
    wall_s = time.monotonic() - setting.began
    given = Inputs(
        seed=setting.options.seed, machine=look(), wall_s=wall_s, setup_s=_setup_seconds(),
        facts=facts, clients=clients, held=held, sabotage=sabotage,
    )  # fmt: skip
    return _publish(given, setting, console)


def _publish(given: Inputs, setting: Setting, console: Console) -> dict[str, Any]:
    """The summary as JSON, as a page and as a table."""
    summary = summarise(given)
    text = json.dumps(summary, indent=2) + "\n"
    (setting.results / "summary.json").write_text(text)
    if setting.options.json_path is not None:
        setting.options.json_path.write_text(text)
    write_report(setting.results / "report.html", summary, series(given))
    console.print(table(summary))
    console.print(f"report: {setting.results / 'report.html'}", soft_wrap=True)
    return summary


def _champion(show: Performance, updates: UpdateTail) -> Path | None:
    """The live champion's adapter folder; None while the start serves. Raises AdapterMissing."""
    champion = (show.scene.status.get("split") or {}).get("champion") or {}
    digest = champion.get("digest")
    return updates.find(digest, uri=champion.get("uri")) if digest else None


def _say_well(console: Console, ready: up.Ready) -> None:
    console.print(f"  [green]well[/] {ready.part.name:<10} {ready.after_s:6.1f} s", highlight=False)


def _stay(stack: up.Stack, setting: Setting, console: Console) -> None:
    """Until Ctrl-C: the stack is a person's to talk to."""
    address = serving_address(setting.stack)
    console.print(
        f"The stack stays up at {address}: talk to it with `.venv/bin/ratchet chat`. Ctrl-C ends it."
    )
    with suppress(KeyboardInterrupt):
        while True:
            for line in stack.check():
                console.print(line, soft_wrap=True, highlight=False)
            time.sleep(1.0)


def _setup_seconds() -> float:
    """How long `make setup` took the last time it had something to do."""
    stamp = Path(sys.prefix) / "stamps" / "setup_s"
    return float(stamp.read_text()) if stamp.exists() else 0.0
