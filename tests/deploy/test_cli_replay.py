"""`ratchet replay` on a real Kafka, and what it says to a person who asks for the impossible."""

import json
import threading
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deploy.cli import app
from feedback import sent
from feedback.agent_file import load_agent_file
from feedback.kafka import KafkaBus
from feedback.monitor import Monitor
from feedback.outbox import Outbox
from feedback.schemas import EXPERIENCES, FEEDBACK, INTERACTIONS, Experience
from feedback.store import open_database
from feedback.worker import Worker
from tests.feedback.building import AGENT, interaction, rating
from tests.running import free_port

RUNNER = CliRunner()
EPISODES = 12
DEADLINE_S = 60.0


@pytest.fixture
def agent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "agent.yaml"
    fields = {
        "agent": AGENT,
        "model": {"path": "model"},
        "system": "",
        "episode": {"idle": "1s", "grace": "1s"},
    }
    path.write_text(yaml.safe_dump(fields))
    monkeypatch.setenv("RATCHET_AGENT", str(path))
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    return path


def converse(bus: KafkaBus, now: int) -> None:
    """Episodes of two replies with a thumb each; the second reply arrives before the first in some."""
    for number in range(EPISODES):
        name = f"ep_replay{number}"
        replies = [interaction(0, episode=name), interaction(1, episode=name, user_text="Thanks!")]
        for reply in replies if number % 3 else reversed(replies):
            bus.send(INTERACTIONS, name, reply.to_bytes(), timestamp_ms=now + reply.index)
        thumb = rating(number % 2 == 0, episode_id=name, response=f"{name}-r0", id=f"fb_{name}")
        for _ in range(2):
            bus.send(FEEDBACK, name, thumb.to_bytes(), timestamp_ms=now + 5)
    bus.flush(20)


def work_until_sent(bus: KafkaBus, home: Path, agent_file: Path) -> dict[str, bytes]:
    """The last revisions that a worker sends."""
    engine = open_database("feedback", home=home)
    worker = Worker(
        engine,
        bus,
        agent=load_agent_file(agent_file),
        outbox=Outbox(engine, 1_000),
        monitor=Monitor(),
        clock=lambda: time.time_ns() // 1_000_000,
    )
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    reader, last = bus.reader([EXPERIENCES]), dict[str, Experience]()
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len([each for each in last.values() if each.ratings and len(each.turns) == 2]) < EPISODES:
            assert time.monotonic() < deadline, f"{len(last)} experiences came"
            for record in reader.poll(0.2):
                each = Experience.from_bytes(record.value)
                last[each.episode_id] = each
    finally:
        stop.set()
        thread.join()
        reader.close()
        engine.dispose()
    return {name: each.to_bytes() for name, each in last.items()}


@pytest.mark.end_to_end
def test_a_replay_of_a_real_topic_gives_the_same_bytes(
    kafka_broker: str, agent_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_KAFKA", kafka_broker)
    bus = KafkaBus(kafka_broker, "test")
    bus.ensure_topics(2)
    now = time.time_ns() // 1_000_000
    converse(bus, now)
    sent_last = work_until_sent(bus, tmp_path / "live", agent_file)
    whole = RUNNER.invoke(
        app, ["replay", "--from", "earliest", "--database", str(tmp_path / "fresh"), "--json"]
    )
    assert whole.exit_code == 0, whole.output
    found = json.loads(whole.stdout)
    assert (found["same"], found["different"], found["missing"]) == (EPISODES, 0, 0)
    engine = open_database("feedback", home=tmp_path / "fresh")
    with engine.connect() as conn:
        assert sent.rebuilt(conn) == sent_last
    engine.dispose()
    later = RUNNER.invoke(
        app, ["replay", "--from", str(now + 1), "--database", str(tmp_path / "later"), "--json"]
    )
    assert json.loads(later.stdout)["episodes"] == 0
    again = RUNNER.invoke(app, ["replay", "--from", "earliest", "--database", str(tmp_path / "fresh")])
    assert (again.exit_code, "empty" in again.stderr) == (2, True)
    bus.close()


@pytest.mark.parametrize("start", ["yesterday", "", "2026-13-01"])
def test_a_time_that_is_none_is_bad_input(agent_file: Path, tmp_path: Path, start: str) -> None:
    done = RUNNER.invoke(app, ["replay", "--from", start, "--database", str(tmp_path)])
    assert (done.exit_code, "--from" in done.stderr) == (2, True)


@pytest.mark.parametrize("url", ["postgresql+nothing://x", "://"])
def test_a_database_that_is_none_is_one_line(agent_file: Path, url: str) -> None:
    done = RUNNER.invoke(app, ["replay", "--from", "earliest", "--database", url])
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)


def test_no_kafka_is_exit_3(agent_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_KAFKA", f"127.0.0.1:{free_port()}")
    done = RUNNER.invoke(app, ["replay", "--from", "5", "--database", str(tmp_path)])
    assert (done.exit_code, done.stderr.strip().startswith("ratchet: no Kafka")) == (3, True)
