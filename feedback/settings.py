"""The settings that every process shares, each under one name in the environment.

Invariant: a field is read from its own variable or its class's prefix, never from a bare name: `HOME` is a person's folder.
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def listed(text: str) -> list[str]:
    """What stands between the commas of a setting."""
    return [each.strip() for each in text.split(",") if each.strip()]


class Shared(BaseSettings):
    """A process's settings begin with these and add its own under its prefix."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    home: Path = Field(default=Path(".ratchet"), validation_alias="RATCHET_HOME")
    agent_file: Path = Field(
        default=Path("deploy/profiles/desk/agent.yaml"), validation_alias="RATCHET_AGENT"
    )
    kafka: str = Field(
        default="127.0.0.1:9092",
        validation_alias="RATCHET_KAFKA",
        description="host:port, several separated by commas",
    )
    mlflow: str = Field(default="http://127.0.0.1:5000", validation_alias="MLFLOW_TRACKING_URI")
    database: str = Field(
        default="",
        validation_alias="RATCHET_DATABASE",
        description="postgresql+psycopg://…; empty = SQLite under the home",
    )
    partitions: int = Field(
        default=2,
        ge=1,
        validation_alias="RATCHET_PARTITIONS",
        description="of every topic; start-up refuses topics that have another count",
    )
    api_keys: str = Field(
        default="",
        validation_alias="RATCHET_API_KEYS",
        repr=False,
        description="name:secret:scope+scope, comma between",
    )
