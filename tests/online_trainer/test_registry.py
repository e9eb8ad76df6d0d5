"""MLflow as it is: a server with SQLite and served artifacts, spoken to over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from feedback.agent_file import AgentFile
from feedback.manifest import ManifestError
from feedback.schemas import Decision, Update
from online_trainer.policy import Policy, read_adapter, state_digest
from online_trainer.publish import publish_one, tidy, write_candidate
from online_trainer.registry import Registry, RegistryDown, VersionTaken, first_line
from online_trainer.state import Publication
from tests.online_trainer import tiny

READY_S = 240
V1, V2 = "tiny-desk-000001", "tiny-desk-000002"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{home}/mlflow.db"),
        *("--artifacts-destination", str(home / "artifacts"), "--serve-artifacts"),
    ]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not _healthy(url):
            assert process.poll() is None and time.monotonic() < deadline, (home / "log").read_text()[-2000:]
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def publication(folder: Path, digest: str, *, number: int, offer: bool) -> Publication:
    update = Update(
        update_id=f"up_{number}",
        agent="tiny-desk",
        parent=tiny.BASE,
        reference=tiny.BASE,
        digest=digest,
        decision=Decision.ACCEPTED,
        at=0,
    )
    return Publication(
        update=update,
        folder=folder.name,
        digest=digest,
        step=number,
        at_update=number,
        serial=number,
        metrics={"objective/kl": 0.01 * number, "lr": 1e-3},
        offer=offer,
    )


def adapter(policy: Policy, home: Path, *, number: int) -> tuple[Path, str]:
    """A folder whose weights differ by number."""
    policy.load({name: value + 0.01 * number for name, value in policy.state().items()})
    folder = home / f"up_{number}"
    return folder, write_candidate(policy, folder, probe=[[1, 2, 3]], base_version=tiny.BASE)


@pytest.mark.end_to_end
@pytest.mark.timeout(400)
def test_updates_versions_aliases_and_bytes_survive_the_round_trip(
    server: str, policy: Policy, agent: AgentFile, tmp_path: Path
) -> None:
    registry = Registry(server, agent.agent)
    assert registry.next_number() == 1
    assert registry.find_version(V1) is None

    first, digest = adapter(policy, tmp_path, number=1)
    weights = state_digest(policy.state())
    logged = publish_one(
        registry, publication(first, digest, number=1, offer=False), first, agent=agent.agent, reserved=0
    )
    assert logged.uri.startswith("models:/m-")
    assert logged.version is None

    offer = publication(first, digest, number=1, offer=True)
    made = publish_one(registry, offer, first, agent=agent.agent, reserved=0)
    again = publish_one(registry, offer, first, agent=agent.agent, reserved=0)
    assert (made.version, made.uri) == (again.version, again.uri) == (V1, logged.uri)

    second, other = adapter(policy, tmp_path, number=2)
    with pytest.raises(VersionTaken):
        registry.create_version(logged.uri, version=V1, digest=other, tags={})
    later = publish_one(
        registry, publication(second, other, number=2, offer=True), second, agent=agent.agent, reserved=4
    )
    assert later.version == "tiny-desk-000005"
    assert [found.version for found in registry.list_versions()] == [V1, "tiny-desk-000005"]
    assert registry.next_number() == 6
    found = registry.find_version(V1)
    assert found is not None and (found.digest, found.parent) == (digest, tiny.BASE)

    into = registry.download(made.uri, digest, into=tmp_path / "cache" / V1)
    policy.load(read_adapter(into))
    assert state_digest(policy.state()) == weights
    with pytest.raises(ManifestError):
        registry.download(made.uri, other, into=tmp_path / "cache" / V2)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [V1]
    (into / "adapter_model.safetensors").write_bytes(b"half")
    assert registry.download(made.uri, digest, into=into) == into
    policy.load(read_adapter(into))
    assert state_digest(policy.state()) == weights

    registry.set_aliases({"champion": V1, "challenger": "tiny-desk-000005"})
    registry.set_aliases({"champion": "tiny-desk-000005", "challenger": None})
    registry.set_aliases({"champion": tiny.BASE})


def test_an_absent_server_is_down_soon_and_says_so(agent: AgentFile) -> None:
    registry = Registry(tiny.NOWHERE, agent.agent, timeout_s=1)
    begun = time.monotonic()
    with pytest.raises(RegistryDown):
        registry.next_number()
    assert time.monotonic() - begun < 60


def test_an_error_that_says_nothing_has_a_name() -> None:
    assert first_line(OSError()) == "OSError: "
    assert first_line(OSError("one\ntwo")) == "OSError: one"


def test_what_was_fetched_for_a_return_is_tidied_away(tmp_path: Path) -> None:
    for name in ("up_1", "up_2", "fetched-1", ".fetched-2.x1"):
        (tmp_path / name).mkdir()
    tidy(tmp_path, keep={"up_2"})
    assert [path.name for path in tmp_path.iterdir()] == ["up_2"]
