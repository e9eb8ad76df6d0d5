"""`ratchet up` starts every real part from one command, keeps it alive, and `ratchet down` ends it all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.stack.doctor import is_port_free
from deploy.stack.supervision import marked_processes, stop_all
from tests.end_to_end.conftest import PORTS, LiveStack, environment_for
from tests.running import eventually

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1200)]
PARTS = {"engine", "kafka", "mlflow", "serving", "feedback", "trainer", "deploy"}


def test_every_part_said_when_it_was_well(live_stack: LiveStack) -> None:
    lines = [json.loads(line) for line in (live_stack.home / "up.jsonl").read_text().splitlines()]

    assert {line["part"] for line in lines if "part" in line} == PARTS
    assert lines[-1]["serving"] == live_stack.address("SERVING_PORT")


def test_status_calls_every_part_well_and_says_what_is_live(live_stack: LiveStack) -> None:
    found = live_stack.ask("status")

    assert {part["name"] for part in found["parts"] if part["well"]} == PARTS
    assert found["live"]["champion"] == "travel-desk-000000"


def test_the_agent_answers_and_the_answer_can_be_rated(live_stack: LiveStack) -> None:
    said = "I want to go to Rome for 3 nights.\n/good\n"
    done = live_stack.ratchet("chat", "--json", said=said)
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    answer, rating = lines[1], lines[2]
    assert answer["agent"]["adapter"] == "travel-desk-000000"
    assert answer["episode_id"].startswith("ep_")
    assert rating["rated"]["response_id"] == answer["response_id"]


def test_a_second_stack_in_the_same_home_is_refused(live_stack: LiveStack) -> None:
    done = live_stack.ratchet("up")

    assert done.returncode == 1
    assert "already running" in done.stderr
    assert {part["name"] for part in live_stack.ask("status")["parts"] if part["well"]} == PARTS


def test_another_home_is_told_who_holds_the_port(live_stack: LiveStack, tmp_path: Path) -> None:
    elsewhere = LiveStack(
        tmp_path / "home", {**live_stack.environment, "RATCHET_HOME": str(tmp_path / "home")}
    )

    done = elsewhere.ratchet("up")

    assert done.returncode == 1
    assert f"(pid {live_stack.pid_of('engine')}" in done.stderr
    assert marked_processes(elsewhere.home) == []


@pytest.mark.parametrize(
    "part", ["feedback", "deploy", "mlflow", pytest.param("engine", marks=pytest.mark.crash)]
)
def test_a_killed_part_is_well_again_and_leaves_no_orphan(live_stack: LiveStack, part: str) -> None:
    before = len(marked_processes(live_stack.home))
    killed = live_stack.pid_of(part)

    os.kill(killed, signal.SIGKILL)

    def is_back() -> bool:
        state = live_stack.part(part)
        return bool(state["well"]) and state["pid"] != killed

    assert eventually(is_back, within_s=400), live_stack.logs()
    assert eventually(lambda: len(marked_processes(live_stack.home)) == before)
    # Serving routes to a restarted engine once it has given it its adapters back.
    assert eventually(lambda: live_stack.part("serving")["well"], within_s=60)


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    stack = LiveStack(
        tmp_path / "home", {**environment_for(tmp_path / "home"), "DEPLOY_START_TIMEOUT_S": "0.1"}
    )

    done = stack.ratchet("up")

    assert done.returncode == 1
    assert "not well after 0.1 s" in done.stderr
    assert marked_processes(stack.home) == []
    assert all(is_port_free(int(stack.environment[port])) for port in PORTS)


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[tuple[LiveStack, subprocess.Popen[bytes]]]:
    """`ratchet up` in the foreground, caught while its parts are starting."""
    home = tmp_path / "home"
    agent = tmp_path / "agent.yaml"
    agent.write_text("agent: hollow\nmodel: {path: model}\nsystem: s\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 64, "num_attention_heads": 1}')
    (tmp_path / "model" / "model.safetensors").touch()
    stack = LiveStack(home, {**environment_for(home), "RATCHET_AGENT": str(agent)})
    # A shell starts background jobs with Ctrl-C ignored, and their children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", "from deploy.cli import main; main()", "up"],
            env=stack.environment,
            stdout=said,
            stderr=said,
        )
    try:
        assert eventually(lambda: len(marked_processes(home)) >= len(PARTS) // 2, within_s=60)
        yield stack, process
    finally:
        signal.signal(signal.SIGINT, before)
        process.kill()
        process.wait()
        stop_all(home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_up_and_everything_it_started(
    starting: tuple[LiveStack, subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    stack, up = starting

    up.send_signal(number)

    assert up.wait(timeout=90) == 130
    assert marked_processes(stack.home) == []


def test_what_a_killed_up_left_is_ended_by_down(starting: tuple[LiveStack, subprocess.Popen[bytes]]) -> None:
    stack, up = starting
    up.kill()
    up.wait()
    assert marked_processes(stack.home)

    done = stack.ratchet("down")

    assert done.returncode == 0
    assert "ended" in done.stdout
    assert marked_processes(stack.home) == []
