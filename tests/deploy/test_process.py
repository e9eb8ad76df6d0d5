"""`python -m deploy` as a process: it steers without Kafka and MLflow, ends cleanly on SIGTERM, and goes on after kill -9."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
KEY = {"Authorization": "Bearer process-secret"}


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """One controller process and its address."""

    def __init__(self, home: Path, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        environment = os.environ | {
            "RATCHET_HOME": str(home),
            "RATCHET_AGENT": str(ROOT / "deploy/profiles/desk/agent.yaml"),
            "RATCHET_KAFKA": f"127.0.0.1:{free_port()}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}",
            "RATCHET_API_KEYS": "ops:process-secret:admin",
            "DEPLOY_PORT": str(port),
        }
        self.child = subprocess.Popen([sys.executable, "-m", "deploy"], cwd=ROOT, env=environment)

    def wait_until_healthy(self, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.child.poll() is None, "the process ended"
            try:
                if httpx.get(f"{self.address}/healthz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                self.pause()
        raise AssertionError("not healthy in time")

    def pause(self) -> None:
        """Between two looks: until the child ends, or a quarter of a second."""
        try:
            self.child.wait(0.25)
        except subprocess.TimeoutExpired:
            return


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"


def test_it_steers_alone_and_ends_cleanly(home: Path) -> None:
    port = free_port()
    first = Process(home, port)
    try:
        first.wait_until_healthy()
        status = httpx.get(f"{first.address}/v1/status", headers=KEY, timeout=10).json()
        assert (status["champion"], status["spooled"]) == ("travel-desk-000000", 1)
    finally:
        first.child.kill()
        first.child.wait()
    second = Process(home, port)
    try:
        second.wait_until_healthy()
        again = httpx.get(f"{second.address}/v1/status", headers=KEY, timeout=10).json()
        assert again["split"] == status["split"]
        second.child.send_signal(signal.SIGTERM)
        assert second.child.wait(15) == 0
    finally:
        if second.child.poll() is None:
            second.child.kill()
