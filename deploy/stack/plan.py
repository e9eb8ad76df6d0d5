"""The stack as data: which parts `ratchet up` starts, where each listens, and how one asks whether it is well.

A part that the operator has named an address for (RATCHET_KAFKA, MLFLOW_TRACKING_URI, SERVING_ENGINES) is used and
never started. Pure, apart from the settings' own reading of the environment.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from deploy.stack.engine import EngineOptions, engine_command, engine_environment
from deploy.stack.machine import Dtype
from feedback.agent_file import AgentFile
from feedback.settings import Shared

PROFILES = Path(__file__).parents[1] / "profiles"
Port = int


class StackSettings(Shared):
    """`DEPLOY_…` for what `ratchet up` starts."""

    model_config = SettingsConfigDict(env_prefix="DEPLOY_")

    agent_file: Path = Field(default=PROFILES / "desk" / "agent.yaml", validation_alias="RATCHET_AGENT")
    kafka: str = Field(
        default="",
        validation_alias="RATCHET_KAFKA",
        description="host:port of a cluster to use; empty = start a node",
    )
    mlflow: str = Field(
        default="",
        validation_alias="MLFLOW_TRACKING_URI",
        description="address of a server to use; empty = start one",
    )
    engines: str = Field(
        default="",
        validation_alias="SERVING_ENGINES",
        description="comma list of vLLM addresses to use; empty = start one",
    )
    serving_port: Port = Field(default=8000, validation_alias="SERVING_PORT")
    port: Port = Field(default=8001, description="deploy's own API")
    feedback_port: Port = Field(default=8002, validation_alias="FEEDBACK_METRICS_PORT")
    trainer_port: Port = Field(default=8003, validation_alias="TRAINER_PORT")
    kafka_port: Port = Field(default=9092, description="of the node we start")
    kafka_controller_port: Port = Field(default=9093, description="of the node we start")
    mlflow_port: Port = Field(default=5000, description="of the server we start")
    engine_port: Port = Field(default=8100, description="of the server we start")
    engine_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto = bfloat16 where the CPU has units for it"
    )
    engine_threads: int = Field(default=0, ge=0, description="0 = half of the cores, at least 1")
    engine_max_sequences: int = Field(default=32, ge=1, description="requests decoded at once")
    engine_cache_mib: int = Field(default=512, ge=64, description="key-value cache")
    start_timeout_s: float = Field(default=600.0, gt=0, description="until every part must be well")
    memory_needed_gib: float = Field(default=6.0, ge=0, description="free memory below which `up` refuses")


@dataclass(frozen=True)
class Part:
    """One process of the stack. `health` is an address to GET, or host:port of a Kafka broker; one that `forks` has
    children that may outlive it.
    """

    name: str
    command: tuple[str, ...]
    health: str
    ports: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    forks: bool = False


@dataclass(frozen=True)
class Plan:
    """All parts, and the environment that they share."""

    stores: tuple[Part, ...]
    loop: tuple[Part, ...]
    environment: Mapping[str, str]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Stores first; they stop last."""
        return (*self.stores, *self.loop)


def plan_stack(settings: StackSettings, agent: AgentFile, *, dtype: Dtype, cores: int) -> Plan:
    """What to start for these settings on a machine with that many cores."""
    environment = {
        "RATCHET_HOME": str(settings.home.absolute()),
        "RATCHET_AGENT": str(settings.agent_file.absolute()),
        "RATCHET_API_KEYS": settings.api_keys,
        "RATCHET_KAFKA": settings.kafka or f"127.0.0.1:{settings.kafka_port}",
        "MLFLOW_TRACKING_URI": settings.mlflow or f"http://127.0.0.1:{settings.mlflow_port}",
        "SERVING_ENGINES": settings.engines or f"http://127.0.0.1:{settings.engine_port}",
        "SERVING_PORT": str(settings.serving_port),
        "DEPLOY_PORT": str(settings.port),
        "FEEDBACK_METRICS_PORT": str(settings.feedback_port),
        "TRAINER_PORT": str(settings.trainer_port),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return Plan(
        stores=_stores(settings, agent, dtype=dtype, cores=cores),
        loop=_loop(settings),
        environment=environment,
    )


def serving_address(settings: StackSettings) -> str:
    """Where chat is answered."""
    return f"http://127.0.0.1:{settings.serving_port}"


def deploy_address(settings: StackSettings) -> str:
    """Where canaries are steered."""
    return f"http://127.0.0.1:{settings.port}"


def _stores(settings: StackSettings, agent: AgentFile, *, dtype: Dtype, cores: int) -> tuple[Part, ...]:
    parts = []
    if not settings.engines:
        parts.append(_engine(settings, agent, dtype=dtype, cores=cores))
    if not settings.kafka:
        parts.append(_kafka(settings))
    if not settings.mlflow:
        parts.append(_mlflow(settings))
    return tuple(parts)


def _engine(settings: StackSettings, agent: AgentFile, *, dtype: Dtype, cores: int) -> Part:
    options = EngineOptions(
        port=settings.engine_port,
        dtype=dtype if settings.engine_dtype == "auto" else settings.engine_dtype,
        threads=settings.engine_threads or max(1, cores // 2),
        max_sequences=settings.engine_max_sequences,
        cache_mib=settings.engine_cache_mib,
    )
    return Part(
        "engine",
        engine_command(agent, options),
        f"http://127.0.0.1:{settings.engine_port}/health",
        ports=(settings.engine_port,),
        environment=engine_environment(options),
        forks=True,
    )


def _kafka(settings: StackSettings) -> Part:
    ports = (settings.kafka_port, settings.kafka_controller_port)
    return Part(
        "kafka",
        (
            sys.executable,
            "-m",
            "deploy.stack.kafka_node",
            str(settings.home.absolute() / "kafka"),
            *map(str, ports),
        ),
        f"127.0.0.1:{settings.kafka_port}",
        ports=ports,
    )


def _mlflow(settings: StackSettings) -> Part:
    folder = settings.home.absolute() / "mlflow"
    return Part(
        "mlflow",
        (
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(settings.mlflow_port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.sqlite'}"),
            *("--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")),
        ),
        f"http://127.0.0.1:{settings.mlflow_port}/health",
        ports=(settings.mlflow_port,),
        # No jobs run in this server: their executor would be two more processes.
        environment={"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        forks=True,
    )


def _loop(settings: StackSettings) -> tuple[Part, ...]:
    """Our four processes. The trainer yields the processor to those that answer people."""
    return (
        _ours("serving", "serving", settings.serving_port, path="/readyz"),
        _ours("feedback", "feedback", settings.feedback_port, path="/metrics"),
        _ours("trainer", "online_trainer", settings.trainer_port, path="/metrics", nice=10),
        _ours("deploy", "deploy", settings.port, path="/healthz"),
    )


def _ours(name: str, package: str, port: int, *, path: str, nice: int = 0) -> Part:
    return Part(
        name,
        (sys.executable, "-m", package),
        f"http://127.0.0.1:{port}{path}",
        ports=(port,),
        nice=nice,
    )
