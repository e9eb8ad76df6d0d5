"""Real processes started by tests: on free ports, with a log each, ended by their own pid."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def eventually(holds: Callable[[], object], *, within_s: float = 15.0) -> bool:
    """Whether it holds at some moment before the deadline."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


@contextmanager
def running(
    command: Sequence[str],
    is_well: Callable[[], bool],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    within_s: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the block; fails with its last words if it dies or is not well in time."""
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
    try:
        eventually(lambda: process.poll() is not None or is_well(), within_s=within_s)
        assert process.poll() is None and is_well(), f"{command}: {log.read_text(errors='replace')[-2000:]}"
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
