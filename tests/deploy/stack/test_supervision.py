"""Supervision on real processes: what is started is found again and ended, whoever died in between."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.stack.doctor import Level, check_port
from deploy.stack.marks import MARK
from deploy.stack.plan import Part, Plan, StackSettings
from deploy.stack.supervision import (
    State,
    launch,
    mark_of,
    marked_processes,
    render_configuration,
    resting,
    socket_path,
    stop_all,
    supervisor_pid,
)
from deploy.stack.up import Ready, Stack, UpError, claim_home, is_well, run_plan
from tests.running import eventually, free_port


def answering_part(name: str) -> Part:
    port = free_port()
    command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    return Part(name, command, f"http://127.0.0.1:{port}/", ports=(port,))


def dying_part(name: str) -> Part:
    command = (sys.executable, "-c", "import sys; print('port 7 is cursed'); sys.exit(1)")
    return Part(name, command, "http://127.0.0.1:1/")


def plan_of(*loop: Part) -> Plan:
    return Plan(stores=(), loop=loop, environment={"SOMETHING": "shared"})


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[StackSettings]:
    yield StackSettings(home=tmp_path / "home", start_timeout_s=30)
    stop_all(tmp_path / "home", timeout_s=5)


def test_every_part_is_shown_when_well_and_nothing_is_left_after_stop(settings: StackSettings) -> None:
    shown: list[Ready] = []
    stack = run_plan(settings, plan_of(answering_part("one"), answering_part("two")), shown.append)

    assert {ready.part.name for ready in shown} == {"one", "two"}
    processes = marked_processes(settings.home)
    assert len(processes) == 3  # supervisord and two parts
    assert stack.stop() == []
    assert not any(process.is_running() for process in processes)
    assert supervisor_pid(settings.home) is None


def test_a_killed_part_comes_back(settings: StackSettings) -> None:
    stack = run_plan(settings, plan_of(answering_part("one")), lambda ready: None)
    first = stack.states()["one"].pid

    assert stack.check() == []
    os.kill(first, signal.SIGKILL)

    assert eventually(lambda: stack.states()["one"].pid not in (0, first))
    (said,) = stack.check()
    assert said.startswith("one died and was started again; see ")
    assert stack.check() == []
    stack.stop()


class OneLifeEach(Stack):
    """A stack whose part is another process at each look, as one that dies every 20 seconds is: RUNNING all the time."""

    def states(self) -> dict[str, State]:
        self.lives = getattr(self, "lives", 0) + 1
        return {"one": State("RUNNING", self.lives, 1)}


def test_a_part_that_dies_every_twenty_seconds_ends_the_stack_with_its_last_words(
    settings: StackSettings,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as supervisor:
        stack = OneLifeEach(settings, plan_of(), supervisor)
        stack.log("one").parent.mkdir(parents=True)
        stack.log("one").write_text("starting\nthe disk is full\n")

        said = [line for _ in range(3) for line in stack.check()]
        with pytest.raises(UpError, match=r"^one died \(again and again\): the disk is full; see .*one.log$"):
            stack.check()

    assert len(said) == 2


def test_a_part_rests_alone_and_comes_back(settings: StackSettings) -> None:
    stack = run_plan(settings, plan_of(answering_part("one"), answering_part("two")), lambda ready: None)
    before = stack.states()

    with resting(settings.home, "one"):
        assert stack.states()["one"].pid == 0
        assert stack.states()["two"] == before["two"]
        stack.check()

    assert eventually(lambda: stack.states()["one"].pid not in (0, before["one"].pid))
    stack.stop()


def test_a_killed_part_takes_its_children_with_it_before_it_comes_back(
    settings: StackSettings, tmp_path: Path
) -> None:
    """As `mlflow server` does: the child listens, the parent only waits."""
    port = free_port()
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'http.server', '{port}', '--bind', '127.0.0.1'], check=True)\n"
    )
    part = Part("one", (sys.executable, str(parent)), f"http://127.0.0.1:{port}/", forks=True)
    stack = run_plan(settings, plan_of(part), lambda ready: None)
    first = stack.states()["one"].pid
    (child,) = psutil.Process(first).children()

    os.kill(first, signal.SIGKILL)

    assert eventually(lambda: stack.states()["one"].pid not in (0, first))
    assert eventually(lambda: not child.is_running() and is_well(part.health))
    assert len(marked_processes(settings.home)) == 3  # supervisord, parent, child
    stack.stop()


def test_a_part_that_keeps_dying_stops_the_start_with_one_line_and_leaves_nothing(
    settings: StackSettings,
) -> None:
    with pytest.raises(UpError, match=r"^bad died \(again and again\): port 7 is cursed; see .*bad.log$"):
        run_plan(settings, plan_of(answering_part("good"), dying_part("bad")), lambda ready: None)

    assert marked_processes(settings.home) == []


def test_a_part_that_is_never_well_stops_the_start(settings: StackSettings) -> None:
    hurried = settings.model_copy(update={"start_timeout_s": 1.0})
    sleeper = Part("sleeper", (sys.executable, "-c", "import time; time.sleep(60)"), "http://127.0.0.1:1/")

    with pytest.raises(UpError, match="sleeper not well after 1 s"):
        run_plan(hurried, plan_of(sleeper), lambda ready: None)

    assert marked_processes(settings.home) == []


def test_orphans_of_a_killed_supervisor_are_ended(settings: StackSettings) -> None:
    stack = run_plan(settings, plan_of(answering_part("one")), lambda ready: None)
    pid = supervisor_pid(settings.home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: supervisor_pid(settings.home) is None)
    orphans = marked_processes(settings.home)
    assert len(orphans) == 1

    killed = stack.stop()

    assert killed == []  # asked to end, it ended
    assert not orphans[0].is_running() or orphans[0].status() == psutil.STATUS_ZOMBIE


def test_a_home_in_use_is_not_claimed_and_one_with_orphans_is_cleared(settings: StackSettings) -> None:
    stack = run_plan(settings, plan_of(answering_part("one")), lambda ready: None)
    pid = supervisor_pid(settings.home)
    assert pid is not None

    with pytest.raises(UpError, match="already running"):
        claim_home(settings.home)
    assert len(marked_processes(settings.home)) == 2
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: supervisor_pid(settings.home) is None)
    claim_home(settings.home)
    assert marked_processes(settings.home) == []
    stack.stop()


def test_an_orphan_that_will_not_end_is_killed(settings: StackSettings) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    marked = {**os.environ, MARK: mark_of(settings.home)}
    with subprocess.Popen([sys.executable, "-c", code], env=marked, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()

        killed = stop_all(settings.home, stop_wait_s=0.5)

    assert [str(stubborn.pid) in each for each in killed] == [True]
    assert stubborn.returncode == -signal.SIGKILL


def test_another_process_under_the_recorded_pid_is_left_alone(settings: StackSettings) -> None:
    folder = settings.home / "supervisor"
    folder.mkdir(parents=True)
    (folder / "pid.json").write_text(f'{{"pid": {os.getpid()}, "created": 1.0}}')

    assert supervisor_pid(settings.home) is None
    assert stop_all(settings.home) == []


def test_the_configuration_keeps_percent_signs_and_holds_no_shared_variable(tmp_path: Path) -> None:
    part = Part("one", ("run", "--rate", "50%"), "", environment={"FORMAT": "%s"})

    text = render_configuration(tmp_path, Plan((), (part,), {"RATCHET_DATABASE": "user:secret"}))

    assert "command=run --rate 50%%\n" in text
    assert 'environment=FORMAT="%%s"' in text
    assert "secret" not in text


def test_a_home_too_deep_for_a_socket_gets_a_short_one() -> None:
    deep = Path("/tmp") / ("x" * 120)

    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) != socket_path(deep / "y")


def test_a_taken_port_names_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        finding = check_port("mlflow", port)

    assert finding.level is Level.FAULT
    assert f"pid {os.getpid()}" in finding.said
    assert "DEPLOY_MLFLOW_PORT" in finding.todo
    assert check_port("mlflow", port).level is Level.OK


def test_a_plan_can_be_launched_twice_in_one_home(settings: StackSettings) -> None:
    for _ in range(2):
        stack: Stack = run_plan(settings, plan_of(answering_part("one")), lambda ready: None)
        assert stack.states()["one"].name in {"STARTING", "RUNNING"}
        stack.stop()


def test_launch_hides_the_machines_wish_for_no_bytecode(
    settings: StackSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    supervisor = launch(settings.home, plan_of(answering_part("one")))

    assert eventually(lambda: psutil.Process(supervisor.pid).environ())
    assert "PYTHONDONTWRITEBYTECODE" not in psutil.Process(supervisor.pid).environ()
    stop_all(settings.home)
    supervisor.wait()
