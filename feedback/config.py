"""The operator's settings of the feedback worker, read from the environment; what a rating means is in the agent file."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from feedback.settings import Shared


class Settings(Shared):
    """`FEEDBACK_…`."""

    model_config = SettingsConfigDict(env_prefix="FEEDBACK_")

    outbox_bound: int = Field(
        default=20_000, ge=1_200, description="experiences that may wait for the bus before reading pauses"
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
        description="Prometheus /metrics; 0 = none",
    )
