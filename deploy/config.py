"""The operator's settings of the controller and its API, read from the environment; how a candidate is tried comes from
the agent file. Importing this loads nothing heavy.
"""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """`DEPLOY_…`, and the shared names that every process reads."""

    model_config = SettingsConfigDict(env_prefix="DEPLOY_", extra="ignore", frozen=True)

    home: Path = Field(default=Path(".ratchet"), validation_alias=AliasChoices("RATCHET_HOME", "home"))
    agent_file: Path = Field(
        default=Path("deploy/profiles/desk/agent.yaml"),
        validation_alias=AliasChoices("RATCHET_AGENT", "agent_file"),
    )
    kafka: str = Field(
        default="127.0.0.1:9092",
        validation_alias=AliasChoices("RATCHET_KAFKA", "kafka"),
        description="host:port",
    )
    mlflow: str = Field(
        default="http://127.0.0.1:5000", validation_alias=AliasChoices("MLFLOW_TRACKING_URI", "mlflow")
    )
    database: str = Field(
        default="",
        validation_alias=AliasChoices("RATCHET_DATABASE", "database"),
        description="postgresql+psycopg://…; empty = SQLite under the home",
    )
    api_keys: str = Field(
        default="",
        validation_alias=AliasChoices("RATCHET_API_KEYS", "api_keys"),
        description="name:secret:scope+scope, comma between; the verbs need the scope admin",
    )
    partitions: int = Field(
        default=2,
        ge=1,
        validation_alias=AliasChoices("RATCHET_PARTITIONS", "partitions"),
        description="of every topic; start-up refuses topics that have another count",
    )
    host: str = "127.0.0.1"
    port: int = Field(default=8001, ge=0, le=65535)
    poll_s: float = Field(default=0.5, gt=0, description="how long one look at the bus waits")
    spool_bound: int = Field(default=10_000, ge=10, description="records that may wait for Kafka")
    alias_retry_s: float = Field(default=15.0, gt=0, description="between tries while MLflow is away")
