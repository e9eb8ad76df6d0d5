"""The gateway's settings, from the environment. Shared names have no prefix; its own begin with `SERVING_`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Units and bounds stand beside each field."""

    model_config = SettingsConfigDict(env_prefix="SERVING_", extra="ignore", populate_by_name=True)

    home: Path = Field(default=Path(".ratchet"), validation_alias="RATCHET_HOME")
    agent: Path = Field(default=Path("deploy/profiles/desk/agent.yaml"), validation_alias="RATCHET_AGENT")
    kafka: str = Field(default="127.0.0.1:9092", validation_alias="RATCHET_KAFKA")
    mlflow: str = Field(default="http://127.0.0.1:5000", validation_alias="MLFLOW_TRACKING_URI")
    database: str = Field(default="", validation_alias="RATCHET_DATABASE", description="empty = SQLite")
    api_keys: str = Field(default="", validation_alias="RATCHET_API_KEYS", repr=False)
    engines: str = Field(
        default="http://127.0.0.1:8100", validation_alias="SERVING_ENGINES", description="comma between URLs"
    )
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    max_body: int = Field(default=1024 * 1024, ge=1024, description="bytes of a request's body")
    max_in_flight: int = Field(default=512, ge=1, description="chat requests at once; more get 429")
    outbox_bound: int = Field(default=100_000, ge=1, description="messages that may wait for the bus")
    keep_alive_s: float = Field(
        default=10.0, gt=0, description="silence on a stream before a comment is sent"
    )
    stall_s: float = Field(default=120.0, gt=0, description="silence of an engine that counts as broken")
    tool_threads: int = Field(default=8, ge=1, description="blocking tools at a time")

    def engine_urls(self) -> list[str]:
        """Each engine's address."""
        return [url.strip() for url in self.engines.split(",") if url.strip()]
