"""A real Kafka broker of the tests' own, that can be killed and started again."""

import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from feedback.__main__ import make_topics
from feedback.kafka import KafkaBus

PARTITIONS = 2


@dataclass
class Broker:
    """How to start it, where it listens, and its process while it runs."""

    command: tuple[str, ...]
    bootstrap: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)
        self.process.wait(timeout=30)

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Return once it has the topics."""
        too_late = threading.Event()
        timer = threading.Timer(timeout_s, too_late.set)
        timer.start()
        try:
            assert make_topics(self.bus(), PARTITIONS, too_late), "the broker did not start"
        finally:
            timer.cancel()

    def bus(self) -> KafkaBus:
        return KafkaBus(self.bootstrap, "contract")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
