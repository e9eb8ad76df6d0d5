"""`ratchet up`: check, start every part side by side, tell when each is well, and leave nothing behind on failure.

`start` either returns a healthy Stack or raises UpError with one line and nothing left running.
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from deploy.stack.doctor import Level, examine
from deploy.stack.engine import EngineUnfit
from deploy.stack.kafka_node import is_answering
from deploy.stack.machine import look
from deploy.stack.parity import ParityError, check_engines
from deploy.stack.plan import Part, Plan, StackSettings, plan_stack
from deploy.stack.restarts import Restarts
from deploy.stack.supervision import (
    State,
    last_lines,
    launch,
    marked_processes,
    read_states,
    stop_all,
    supervisor_pid,
)
from feedback.agent_file import AgentFile, load_agent_file
from feedback.probe import read_probe
from feedback.settings import listed
from serving.auth import ensure_key

_POLL_S = 0.5


class UpError(RuntimeError):
    """The stack cannot run; the text is one line that says why and what to do."""


@dataclass(frozen=True)
class Ready:
    """A part became well, this many seconds after the start."""

    part: Part
    after_s: float


Show = Callable[[Ready], None]


class Stack:
    """A running stack. Use `start` to get one."""

    def __init__(self, settings: StackSettings, plan: Plan, supervisor: subprocess.Popen[bytes]) -> None:
        self.settings = settings
        self.plan = plan
        self._supervisor = supervisor
        self._restarts = Restarts()

    def states(self) -> dict[str, State]:
        """What supervisord knows of each part. Raises UpError when supervisord is gone."""
        try:
            return read_states(self.settings.home)
        except OSError as error:
            raise UpError(f"the supervisor is gone; see {self.log('supervisord')}") from error

    def log(self, part: str) -> Path:
        """A part's log file."""
        if part == "supervisord":
            return self.settings.home / "supervisor" / "supervisord.log"
        return self.settings.home / "log" / f"{part}.log"

    def stop(self) -> list[str]:
        """End everything; returns what had to be killed."""
        killed = stop_all(self.settings.home)
        self._supervisor.wait()
        return killed

    def check(self) -> list[str]:
        """A line for each part that was started again since the last look. Raises UpError when one dies again and again."""
        return self._look(self.states())

    def wait_until_well(self, show: Show) -> None:
        """Return when every part is well. Raises UpError on a dead part or after the start timeout."""
        began = time.monotonic()
        waiting = {part.name: part for part in self.plan.parts}
        while waiting:
            self._look(self._states_while_starting(began))
            for part in list(waiting.values()):
                if is_well(part.health):
                    show(Ready(part, time.monotonic() - began))
                    del waiting[part.name]
            if waiting and time.monotonic() - began > self.settings.start_timeout_s:
                raise UpError(self._late(sorted(waiting)))
            time.sleep(_POLL_S)

    def _states_while_starting(self, began: float) -> dict[str, State]:
        """supervisord opens its socket a moment after it starts."""
        try:
            return read_states(self.settings.home)
        except OSError as error:
            if time.monotonic() - began < 10 and supervisor_pid(self.settings.home) is not None:
                return {}
            said = last_lines(self.settings.home / "supervisor" / "stderr.log")
            raise UpError(f"the supervisor did not start: {' '.join(said)}") from error

    def _look(self, states: Mapping[str, State]) -> list[str]:
        said = []
        for name, state in states.items():
            if self._restarts.saw(name, state, at=time.monotonic()):
                said.append(f"{name} died and was started again; see {self.log(name)}")
            if state.is_dead or self._restarts.is_looping(name):
                raise UpError(self._obituary(name, state))
        return said

    def _obituary(self, name: str, state: State) -> str:
        said = " ".join(last_lines(self.log(name)))
        how = f"exit {state.exit_code}" if state.name == "EXITED" else "again and again"
        return f"{name} died ({how}): {said[-300:] or 'it said nothing'}; see {self.log(name)}"

    def _late(self, names: list[str]) -> str:
        logs = ", ".join(str(self.log(name)) for name in names)
        return f"{', '.join(names)} not well after {self.settings.start_timeout_s:g} s; see {logs}"


def read_plan(settings: StackSettings) -> tuple[AgentFile, Plan]:
    """The agent and what must be started for it. Raises UpError and AgentFileError."""
    machine = look()
    agent = load_agent_file(settings.agent_file)
    try:
        return agent, plan_stack(settings, agent, dtype=machine.dtype, cores=machine.cores)
    except EngineUnfit as error:
        raise UpError(str(error)) from error


def start(settings: StackSettings, show: Show) -> Stack:
    """Check, clean up after a killed predecessor, start everything and wait until it is well. Raises UpError."""
    agent, plan = read_plan(settings)
    claim_home(settings.home)
    for finding in examine(settings, agent, plan, look()):
        if finding.level is Level.FAULT:
            raise UpError(f"{finding.about}: {finding.said}; {finding.todo}")
    # Two processes read the keys at their start; they must find the same ones.
    if not settings.api_keys:
        ensure_key(settings.home)
    stack = run_plan(settings, plan, show)
    try:
        engines = listed(plan.environment["SERVING_ENGINES"])
        check_engines(engines, base_version=agent.base_version, start=read_probe(settings.home / "trainer"))
    except (ParityError, ValueError) as error:
        stack.stop()
        raise UpError(str(error)) from error
    return stack


def claim_home(home: Path) -> None:
    """End what a killed predecessor left in this home. Raises UpError when a stack runs there: its state is not ours."""
    if supervisor_pid(home) is not None:
        raise UpError(f"a stack is already running in {home}; `ratchet down` ends it")
    if marked_processes(home):
        stop_all(home)


def run_plan(settings: StackSettings, plan: Plan, show: Show) -> Stack:
    """Start every part at once and wait until all are well; on any failure or interruption nothing is left running."""
    stack = Stack(settings, plan, launch(settings.home, plan))
    try:
        stack.wait_until_well(show)
    except BaseException:
        stack.stop()
        raise
    return stack


def is_well(health: str) -> bool:
    """Whether the part behind this address answers as it should."""
    if not health.startswith("http"):
        return is_answering(health)
    # Not httpx: a client for each look would cost more processor time than the parts' own start.
    address = urlsplit(health)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=1.0)
    try:
        connection.request("GET", address.path or "/")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
