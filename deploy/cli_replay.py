"""`ratchet replay`: the experiences anew from the topics, each held against the last revision that was sent.

Exit codes: 0 all came out the same, 1 some did not, 2 bad input, 3 no Kafka or no database answers.
"""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.terminal import AsJson, answer, fail, faults_end_it, read_settings

if TYPE_CHECKING:
    from feedback.replay import Replayed

_TELL_EVERY_S = 2.0


def replay(
    start: Annotated[
        str, typer.Option("--from", help="earliest, or a time: 2026-11-30T17:00:00Z, or milliseconds.")
    ],
    database: Annotated[
        str, typer.Option(help="Where to: postgresql+psycopg://…, or a folder. Nothing may be in it yet.")
    ],
    as_json: AsJson = False,
) -> None:
    """Rebuild the experiences from the topics and compare each with what was sent."""
    from sqlalchemy.exc import SQLAlchemyError

    from feedback.bus import BusError
    from feedback.replay import NotFresh

    since = _time(start)
    try:
        with faults_end_it():
            found = _replay(since, database)
    except NotFresh as error:
        fail(f"--database: {error}", code=2)
    except BusError as error:
        fail(str(error), code=3)
    except SQLAlchemyError as error:
        fail(f"--database: {str(error).splitlines()[0]}", code=3)
    answer(asdict(found) | {"faithful": found.is_faithful}, _text(found), as_json=as_json)
    if not found.is_faithful:
        raise typer.Exit(1)


def _replay(since: int | None, database: str) -> "Replayed":
    from feedback.agent_file import load_agent_file
    from feedback.kafka import KafkaBus
    from feedback.replay import replay as rebuild
    from feedback.store import open_database

    settings = read_settings(None)
    agent = load_agent_file(settings.agent_file)
    bus = KafkaBus(settings.kafka or f"127.0.0.1:{settings.kafka_port}", "replay")
    url, home = (database, settings.home) if "://" in database else ("", Path(database))
    engine = open_database("feedback", home=home, url=url)
    try:
        return rebuild(
            engine, bus, agent=agent, now=time.time_ns() // 1_000_000, since=since, told=_Teller().tell
        )
    finally:
        bus.close()
        engine.dispose()


class _Teller:
    """Says on stderr how far it is, every two seconds."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def tell(self, what: str, count: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            typer.echo(f"{count} {what}", err=True)


def _time(start: str) -> int | None:
    """`earliest` is None; a time without a zone is UTC."""
    if start == "earliest":
        return None
    if start.isdigit():
        return int(start)
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        fail(f"--from: {start!r} is neither earliest nor a time like 2026-11-30T17:00:00Z", code=2)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, round(aware.timestamp() * 1000))


def _text(found: "Replayed") -> str:
    lines = [
        f"{found.records} records read, {found.dead} of them unreadable, {found.foreign} of other agents",
        f"{found.episodes} episodes rebuilt: {found.same} the same, {found.different} different,"
        f" {found.unsent} never sent",
        f"{found.open} open, {found.partial} begun before, {found.missing} sent and not rebuilt",
    ]
    return "\n".join([*lines, *(f"  {name}" for name in found.named)])
