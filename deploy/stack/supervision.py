"""Supervision by supervisord: its generated configuration, its states, and the end of everything it started.

Every process of a stack carries its home in the environment (RATCHET_STACK). That mark, not a process id, says
what belongs to a stack: so even orphans of a killed supervisor are found and ended, and nothing else ever is.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast
from xmlrpc.client import ServerProxy

import psutil
from supervisor.xmlrpc import SupervisorTransport

from deploy.stack.marks import MARK, variable_of
from deploy.stack.plan import Part, Plan

# A misconfigured process says so with this code; starting it again cannot help.
MISCONFIGURED = 2
_STOP_WAIT_S = 12
_SOCKET_PATH_LIMIT = 100


@dataclass(frozen=True)
class State:
    """What supervisord knows of one part. `name` is supervisord's: RUNNING, STARTING, BACKOFF, EXITED, FATAL…"""

    name: str
    pid: int
    exit_code: int

    @property
    def is_dead(self) -> bool:
        """Whether supervisord has given up on it."""
        # STOPPED is where every part begins, and what `resting` makes of one.
        return self.name in {"FATAL", "EXITED"}


def read_states(home: Path) -> dict[str, State]:
    """Every part of a running stack by name. Raises OSError when supervisord does not answer."""
    with _supervisord(home) as proxy:
        processes = _processes(proxy)
    return {
        str(each["name"]): State(str(each["statename"]), int(str(each["pid"])), int(str(each["exitstatus"])))
        for each in processes
    }


@contextlib.contextmanager
def resting(home: Path, part: str) -> Iterator[None]:
    """Meanwhile this part is stopped; it is started again and goes on from what it has stored. OSError as `read_states`."""
    with _supervisord(home) as proxy:
        (full,) = (f"{each['group']}:{part}" for each in _processes(proxy) if each["name"] == part)
        proxy.supervisor.stopProcess(full)
    try:
        yield
    finally:
        # Where supervisord is gone, what ended it is the news; not that the part cannot be started.
        with contextlib.suppress(OSError), _supervisord(home) as proxy:
            proxy.supervisor.startProcess(full, False)


@contextlib.contextmanager
def _supervisord(home: Path) -> Iterator[ServerProxy]:
    transport = SupervisorTransport(None, None, f"unix://{socket_path(home)}")
    try:
        # The host is never used: the transport speaks to the socket.
        yield ServerProxy("http://127.0.0.1", transport=transport)
    finally:
        transport.close()


def _processes(proxy: ServerProxy) -> list[dict[str, object]]:
    return cast(list[dict[str, object]], proxy.supervisor.getAllProcessInfo())


def launch(home: Path, plan: Plan) -> subprocess.Popen[bytes]:
    """Start supervisord with all parts at once."""
    folder = home / "supervisor"
    folder.mkdir(parents=True, exist_ok=True)
    (home / "log").mkdir(exist_ok=True)
    configuration = folder / "supervisord.conf"
    configuration.write_text(render_configuration(home, plan))
    socket_path(home).unlink(missing_ok=True)
    environment = {**os.environ, **plan.environment, MARK: mark_of(home), "SPT_NOENV": "1"}
    # Some machines switch bytecode off; without it every start imports from source.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (folder / "stderr.log").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", str(configuration)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    (folder / "pid.json").write_text(json.dumps({"pid": process.pid, "created": created}))
    return process


def render_configuration(home: Path, plan: Plan) -> str:
    """supervisord's configuration. Secrets stay out of it: they are inherited through the environment."""
    folder = home.absolute() / "supervisor"
    head = [
        "[unix_http_server]",
        f"file={_quoted(str(socket_path(home)))}",
        "chmod=0600",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
        "[supervisord]",
        "nodaemon=true",
        "silent=true",
        f"pidfile={_quoted(str(folder / 'supervisord.pid'))}",
        f"logfile={_quoted(str(folder / 'supervisord.log'))}",
        "logfile_maxbytes=5MB",
    ]
    sections = [_group("stores", plan.stores, priority=1), _group("loop", plan.loop, priority=2)]
    programs = [_program(home.absolute(), part) for part in plan.parts]
    return "\n".join([*head, *(section for section in sections if section), *programs, ""])


def socket_path(home: Path) -> Path:
    """In the home, or where its path is too long for a socket, in the temporary folder under the home's hash."""
    inside = home.absolute() / "supervisor" / "socket"
    if len(str(inside)) <= _SOCKET_PATH_LIMIT:
        return inside
    return Path(tempfile.gettempdir()) / f"ratchet-{sha256(str(inside).encode()).hexdigest()[:16]}.socket"


def mark_of(home: Path) -> str:
    """The value of RATCHET_STACK in every process of this home's stack."""
    return str(home.absolute().resolve())


def supervisor_pid(home: Path) -> int | None:
    """The pid of this home's supervisord, if the recorded process still is that one."""
    try:
        recorded = json.loads((home / "supervisor" / "pid.json").read_text())
        process = psutil.Process(recorded["pid"])
        is_same = abs(process.create_time() - recorded["created"]) < 1 and process.is_running()
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return process.pid if is_same and process.status() != psutil.STATUS_ZOMBIE else None


def marked_processes(home: Path) -> list[psutil.Process]:
    """Every live process that carries this home's mark."""
    wanted, own = mark_of(home), os.getpid()
    return [each for each in psutil.process_iter() if each.pid != own and variable_of(each, MARK) == wanted]


def stop_all(home: Path, *, timeout_s: float = 60.0, stop_wait_s: float = _STOP_WAIT_S) -> list[str]:
    """End this home's stack: supervisord stops the loop, then the stores. Orphans are asked first; returns the killed."""
    pid = supervisor_pid(home)
    if pid is not None:
        _terminate(psutil.Process(pid))
        _wait_until_gone(home, timeout_s=timeout_s, pid=pid)
    for orphan in marked_processes(home):
        _terminate(orphan)
    _wait_until_gone(home, timeout_s=stop_wait_s)
    survivors = marked_processes(home)
    killed = [_describe(process) for process in survivors]
    for process in survivors:
        _kill(process)
    _wait_until_gone(home, timeout_s=5)
    (home / "supervisor" / "pid.json").unlink(missing_ok=True)
    socket_path(home).unlink(missing_ok=True)
    return killed


def _wait_until_gone(home: Path, *, timeout_s: float, pid: int | None = None) -> None:
    """Until no process of this home is left; with a pid, until that one is gone."""
    deadline = time.monotonic() + timeout_s
    while any(pid in (None, process.pid) for process in marked_processes(home)):
        if time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def _terminate(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return str(process.pid)


def _group(name: str, parts: Sequence[Part], *, priority: int) -> str:
    """A group's programs stop together; groups stop one after the other, highest priority first."""
    if not parts:
        return ""
    return f"[group:{name}]\nprograms={','.join(part.name for part in parts)}\npriority={priority}"


def _program(home: Path, part: Part) -> str:
    command = part.command
    if part.forks:
        command = (sys.executable, "-m", "deploy.stack.takeover", *command)
    if part.nice:
        command = ("nice", "-n", str(part.nice), *command)
    lines = [
        f"[program:{part.name}]",
        f"command={_quoted(shlex.join(command))}",
        "autostart=true",
        "autorestart=unexpected",
        f"exitcodes={MISCONFIGURED}",
        "startsecs=5",
        "startretries=2",
        f"stopwaitsecs={_STOP_WAIT_S}",
        "killasgroup=true",
        "redirect_stderr=true",
        f"stdout_logfile={_quoted(str(home / 'log' / f'{part.name}.log'))}",
        "stdout_logfile_maxbytes=50MB",
        "stdout_logfile_backups=1",
    ]
    if part.environment:
        lines.append(f"environment={_environment(part.environment)}")
    return "\n".join(lines)


def _environment(variables: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_quoted(value)}"' for name, value in variables.items())


def _quoted(text: str) -> str:
    """supervisord expands percent signs."""
    return text.replace("%", "%%")


def last_lines(log: Path, count: int = 1) -> list[str]:
    """The last non-empty lines of a part's log."""
    try:
        lines: Iterable[str] = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()][-count:]
