"""`python -m feedback`: quick to answer, clear when it cannot start, and indifferent to kill -9."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from feedback.bus import Reader
from feedback.config import Settings
from feedback.schemas import EXPERIENCES, FEEDBACK, INTERACTIONS, Experience
from tests.feedback.broker import Broker, free_port
from tests.feedback.building import interaction, rating

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

DEADLINE_S = 60.0


def run(*code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=DEADLINE_S,
    )


def test_starting_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "mlflow", "sklearn", "fastapi"}
    check = f"import sys, feedback.__main__; print({heavy!r} & set(sys.modules))"
    assert run("-c", check).stdout.strip() == "set()"


def test_help_is_help() -> None:
    done = run("-m", "feedback", "--help")
    assert done.returncode == 0
    assert "Joins interactions with feedback" in done.stdout


def test_a_bad_agent_file_is_exit_2_and_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("agent: a\nmodel: {path: m}\nsystem: x\nepisod: {}\n")
    done = run("-m", "feedback", RATCHET_AGENT=str(path), RATCHET_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "episod: unknown key; did you mean 'episode'?" in done.stderr


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_KAFKA", "somewhere:1234")
    monkeypatch.setenv("FEEDBACK_METRICS_PORT", "7777")
    monkeypatch.setenv("TRAINER_SEED", "3")
    settings = Settings()
    assert (settings.kafka, settings.metrics_port, settings.partitions) == ("somewhere:1234", 7777, 2)


class Process:
    """The worker as a process of its own."""

    def __init__(self, broker: Broker, home: Path) -> None:
        home.mkdir(exist_ok=True)
        agent = home / "agent.yaml"
        agent.write_text(
            yaml.safe_dump(
                {
                    "agent": "travel-desk",
                    "model": {"path": "model"},
                    "system": "",
                    "episode": {"idle": "1s", "grace": "1s"},
                }
            )
        )
        self.port = free_port()
        self._log = (home / "worker.log").open("ab")
        self._environment = {
            **os.environ,
            "RATCHET_HOME": str(home),
            "RATCHET_AGENT": str(agent),
            "RATCHET_KAFKA": broker.bootstrap,
            "FEEDBACK_METRICS_PORT": str(self.port),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "feedback"], env=self._environment, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._log.close()


@pytest.fixture
def worker(kafka_broker: Broker, tmp_path: Path) -> Iterator[Process]:
    made = Process(kafka_broker, tmp_path / "home")
    yield made
    made.close()


def read_until(
    reader: Reader, found: list[Experience], enough: Callable[[list[Experience]], bool]
) -> list[Experience]:
    deadline = time.monotonic() + DEADLINE_S
    while not enough(found):
        assert time.monotonic() < deadline, f"{len(found)} experiences came"
        found += [Experience.from_bytes(record.value) for record in reader.poll(0.2)]
    return found


@pytest.mark.end_to_end
def test_a_killed_worker_loses_and_doubles_nothing(kafka_broker: Broker, worker: Process) -> None:
    """60 episodes with a thumb each, two kills -9 on the way, a clean stop at the end."""
    bus = kafka_broker.bus()
    reader = bus.reader([EXPERIENCES])
    names = [f"ep_kill{number}" for number in range(60)]
    worker.start()
    found: list[Experience] = []
    for start in (0, 20, 40):
        now = time.time_ns() // 1_000_000
        for number, name in list(enumerate(names))[start : start + 20]:
            bus.send(INTERACTIONS, name, interaction(0, episode=name).to_bytes(), timestamp_ms=now)
            thumb = rating(number % 2 == 0, episode_id=name, response=f"{name}-r0", id=f"fb_{name}")
            bus.send(FEEDBACK, name, thumb.to_bytes(), timestamp_ms=now + 1)
        bus.flush(20)
        read_until(
            reader, found, lambda have, wanted=start + 5: len({each.episode_id for each in have}) > wanted
        )
        if start < 40:
            worker.kill()
            worker.start()
    rated = dict.fromkeys(names)
    read_until(
        reader,
        found,
        lambda have: {each.episode_id for each in have if each.outcome is not None} >= rated.keys(),
    )
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=5).read().decode()
    assert "ratchet_episodes_joined_total" in metrics
    assert worker.stop() == 0
    last = {each.episode_id: each for each in sorted(found, key=lambda each: each.revision)}
    assert {name: last[name].outcome for name in names} == {n: int(i % 2 == 0) for i, n in enumerate(names)}
    assert {each.ratings for each in last.values()} == {1}
    by_revision = {(each.episode_id, each.revision): each.id for each in found}
    assert len({each.id for each in found}) == len(by_revision)
    reader.close()
    bus.close()
