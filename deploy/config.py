"""The operator's settings of the controller and its API, read from the environment; how a candidate is tried comes from
the agent file. Importing this loads nothing heavy.
"""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from feedback.settings import Shared


class Settings(Shared):
    """`DEPLOY_…`; the verbs need a key of scope admin."""

    model_config = SettingsConfigDict(env_prefix="DEPLOY_")

    host: str = "127.0.0.1"
    port: int = Field(default=8001, ge=0, le=65535)
    poll_s: float = Field(default=0.5, gt=0, description="how long one look at the bus waits")
    spool_bound: int = Field(default=10_000, ge=10, description="records that may wait for Kafka")
    alias_retry_s: float = Field(default=15.0, gt=0, description="between tries while MLflow is away")
