"""The gateway's settings, from the environment. Shared names have no prefix; its own begin with `SERVING_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from feedback.settings import Shared, listed


class Settings(Shared):
    """Units and bounds stand beside each field."""

    model_config = SettingsConfigDict(env_prefix="SERVING_")

    engines: str = Field(default="http://127.0.0.1:8100", description="vLLM addresses, comma between")
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    max_body: int = Field(default=1024 * 1024, ge=1024, description="bytes of a request's body")
    max_headers: int = Field(default=32 * 1024, ge=1024, description="bytes of a request's headers")
    key_rate: float = Field(default=2000.0, ge=0, description="requests a second of one key; 0 = no limit")
    key_burst: int = Field(default=4000, ge=1, description="requests of one key at once")
    key_in_flight: int = Field(default=256, ge=1, description="requests of one key running at a time")
    rater_rate: float = Field(default=5.0, ge=0, description="ratings a second of one rater; 0 = no limit")
    rater_burst: int = Field(default=300, ge=1, description="ratings of one rater at once")
    cors_origins: str = Field(
        default="", description="origins of pages that may send feedback, comma between; empty = none"
    )
    max_in_flight: int = Field(default=512, ge=1, description="chat requests at once; more get 429")
    outbox_bound: int = Field(default=100_000, ge=1, description="messages that may wait for the bus")
    keep_alive_s: float = Field(
        default=10.0, gt=0, description="silence on a stream before a comment is sent"
    )
    stall_s: float = Field(default=120.0, gt=0, description="silence of an engine that counts as broken")
    tool_threads: int = Field(default=8, ge=1, description="blocking tools at a time")

    def engine_urls(self) -> list[str]:
        """Each engine's address."""
        return listed(self.engines)

    def origins(self) -> list[str]:
        """Each origin that a browser may call from."""
        return listed(self.cors_origins)
