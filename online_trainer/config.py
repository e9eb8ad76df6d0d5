"""The operator's settings of the trainer, read from the environment; what is learned and how comes from the agent file.

Invariant: importing this loads neither torch nor mlflow.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from feedback.settings import Shared


class Settings(Shared):
    """`TRAINER_…`."""

    model_config = SettingsConfigDict(env_prefix="TRAINER_")

    threads: int = Field(
        default=0, ge=0, description="torch threads; 0 = one less than the cores, at least 1"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the base model; bfloat16 rounds log-probs by as much as one update moves them",
    )
    seed: int = 0
    poll_s: float = Field(default=1.0, gt=0, description="how long one look at the bus waits")
    host: str = "127.0.0.1"
    port: int = Field(default=8003, ge=0, le=65535, description="Prometheus /metrics; 0 = none")
    keep_checkpoints: int = Field(default=5, ge=1, description="besides those that a live version needs")
    publish_retry_s: float = Field(
        default=15.0, gt=0, description="between tries while MLflow is down, doubled up to five minutes"
    )
    publish_timeout_s: float = Field(default=20.0, gt=0, description="of one request to MLflow")

    @property
    def folder(self) -> Path:
        """Where the trainer keeps what must survive."""
        return self.home / "trainer"
