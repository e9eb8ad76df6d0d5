"""The operator's settings of the feedback worker, read from the environment; what a rating means is in the agent file."""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """`FEEDBACK_…`, and the shared names that every process reads."""

    model_config = SettingsConfigDict(env_prefix="FEEDBACK_", extra="ignore", frozen=True)

    home: Path = Field(default=Path(".ratchet"), validation_alias=AliasChoices("RATCHET_HOME", "home"))
    agent_file: Path = Field(
        default=Path("deploy/profiles/desk/agent.yaml"),
        validation_alias=AliasChoices("RATCHET_AGENT", "agent_file"),
    )
    kafka: str = Field(
        default="127.0.0.1:9092",
        validation_alias=AliasChoices("RATCHET_KAFKA", "kafka"),
        description="host:port, several separated by commas",
    )
    database: str | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_DATABASE", "database"),
        description="postgresql+psycopg://…; empty = SQLite under the home",
    )
    partitions: int = Field(
        default=2,
        ge=1,
        validation_alias=AliasChoices("RATCHET_PARTITIONS", "partitions"),
        description="of every topic; start-up refuses topics that have another count",
    )
    outbox_bound: int = Field(
        default=20_000, ge=100, description="experiences that may wait for the bus before reading pauses"
    )
    retention_s: float = Field(
        default=14 * 86_400,
        gt=0,
        description="how long episodes are remembered; longer than every metric's window and than Kafka's retention",
    )
    host: str = "127.0.0.1"
    metrics_port: int = Field(
        default=8002,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("FEEDBACK_METRICS_PORT", "FEEDBACK_PORT", "metrics_port"),
        description="Prometheus /metrics; 0 = none",
    )
