"""One whole stack a session, started and ended as a person does it: by `ratchet up` and `ratchet down`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.home import own_agent_file
from deploy.stack.plan import PROFILES
from deploy.stack.supervision import marked_processes
from feedback.kafka import KafkaBus
from tests.running import free_ports

PORTS = (
    "SERVING_PORT",
    "DEPLOY_PORT",
    "FEEDBACK_METRICS_PORT",
    "TRAINER_PORT",
    "DEPLOY_KAFKA_PORT",
    "DEPLOY_KAFKA_CONTROLLER_PORT",
    "DEPLOY_MLFLOW_PORT",
    "DEPLOY_ENGINE_PORT",
)


@dataclass(frozen=True)
class LiveStack:
    """A running stack and the environment that speaks to it."""

    home: Path
    environment: Mapping[str, str]

    def ratchet(
        self, *arguments: str, said: str = "", timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line against this stack."""
        return subprocess.run(
            [sys.executable, "-c", "from deploy.cli import main; main()", *arguments],
            env=self.environment,
            input=said,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ask(self, *arguments: str) -> Any:
        """The JSON answer of a verb that must succeed."""
        done = self.ratchet(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def key(self) -> str:
        """The generated key."""
        return (self.home / "api-key").read_text().strip()

    def address(self, port: str) -> str:
        """Of the part behind one of PORTS."""
        return f"http://127.0.0.1:{self.environment[port]}"

    def part(self, name: str) -> dict[str, Any]:
        """What `ratchet status` says of one part, well or not."""
        parts = json.loads(self.ratchet("status", "--json").stdout)["parts"]
        return next(dict(each) for each in parts if each["name"] == name)

    def pid_of(self, name: str) -> int:
        """Of a supervised process."""
        return int(self.part(name)["pid"])

    def bus(self) -> KafkaBus:
        """A client of the stack's Kafka; the caller closes it."""
        return KafkaBus(f"127.0.0.1:{self.environment['DEPLOY_KAFKA_PORT']}", "test")

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.home.glob("log/*.log"))
        )


def environment_for(home: Path) -> dict[str, str]:
    """Free ports and an own home; the operator's settings are gone already (tests/conftest.py)."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    return {**os.environ, **ports, "RATCHET_HOME": str(home), "DEPLOY_START_TIMEOUT_S": "900"}


@pytest.fixture(scope="session")
def live_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    """Up with the desk profile; afterwards down, with nothing left running."""
    folder = tmp_path_factory.mktemp("stack")
    home = folder / "home"
    # The demo's short form: one small update is enough to go round once.
    agent_file = own_agent_file(PROFILES / "desk" / "agent.yaml", folder / "agent.yaml", short=True)
    stack = LiveStack(home, {**environment_for(home), "RATCHET_AGENT": str(agent_file)})
    try:
        done = stack.ratchet("up", "--detach", "--json", timeout_s=1000)
        assert done.returncode == 0, f"{done.stderr}\n{stack.logs()}"
        (home / "up.jsonl").write_text(done.stdout)
        yield stack
    finally:
        stack.ratchet("down")
        assert marked_processes(home) == []
