"""Shared by all tests: real Kafka, MLflow and vLLM, each started once a session when a test asks for it, and the tiers.

`make test` runs one point of each slow kind; `--every-point` runs them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.stack.kafka_node import is_answering, prepare_node
from deploy.stack.machine import look
from deploy.stack.plan import PROFILES, StackSettings, plan_stack
from deploy.stack.up import is_well
from feedback.agent_file import AgentFile, load_agent_file
from tests.postgres import Postgres, postgres_server
from tests.running import free_port, free_ports, running
from tests.stores import Stores

SETTINGS = ("RATCHET_", "DEPLOY_", "SERVING_", "FEEDBACK_", "TRAINER_", "MLFLOW_")
SLOW_KINDS = ("crash", "soak", "browser", "deployment")
ENGINE_START_S = 300.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-point",
        action="store_true",
        help=f"all tests marked {', '.join(SLOW_KINDS)}, not one of each",
    )


def pytest_configure() -> None:
    """Tests never see the settings, the stack or the database of the person who runs them."""
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first test of each slow kind, and of the end-to-end ones the last place: they start real parts."""
    if not config.getoption("--every-point"):
        kept, left_out = split_tiers(items)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.get_closest_marker("end_to_end") is not None)


def split_tiers(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Which tests run by default, and which wait for `--every-point`."""
    met: set[str] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        kinds = {kind for kind in SLOW_KINDS if item.get_closest_marker(kind)}
        (left_out if kinds & met else kept).append(item)
        met |= kinds
    return kept, left_out


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real broker."""
    folder = tmp_path_factory.mktemp("kafka")
    port, controller_port = free_ports(2)
    node = prepare_node(folder, port=port, controller_port=controller_port)
    with running(node.command, lambda: is_answering(node.bootstrap), log=folder / "log"):
        yield node.bootstrap


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Databases of either kind: what is claimed for one holds for both."""
    server: Postgres | None = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    made = Stores(tmp_path, server)
    yield made
    made.close()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, desk_agent: AgentFile) -> Iterator[str]:
    """Address of a real MLflow server with a database and artifacts of its own."""
    home = tmp_path_factory.mktemp("mlflow")
    (home / "mlflow").mkdir()
    settings = StackSettings(home=home, kafka="unused", engines="unused", mlflow="", mlflow_port=free_port())
    yield from _part("mlflow", settings, desk_agent, within_s=120.0)


@pytest.fixture(scope="session")
def desk_agent() -> AgentFile:
    """The desk profile's agent."""
    return load_agent_file(PROFILES / "desk" / "agent.yaml")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, desk_agent: AgentFile) -> Iterator[str]:
    """Address of a real vLLM server that serves the desk model."""
    home = tmp_path_factory.mktemp("engine")
    settings = StackSettings(home=home, kafka="unused", mlflow="unused", engines="", engine_port=free_port())
    yield from _part("engine", settings, desk_agent, within_s=ENGINE_START_S)


def _part(name: str, settings: StackSettings, agent: AgentFile, *, within_s: float) -> Iterator[str]:
    machine = look()
    plan = plan_stack(settings, agent, dtype=machine.dtype, cores=machine.cores)
    part = next(part for part in plan.parts if part.name == name)
    environment = {**os.environ, **plan.environment, **part.environment}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    log = Path(settings.home) / f"{name}.log"
    with running(
        part.command, lambda: is_well(part.health), log=log, environment=environment, within_s=within_s
    ):
        yield part.health.removesuffix("/health")
