"""The gateway's settings, from the environment. Shared names have no prefix; its own begin with `SERVING_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from feedback.settings import Shared


class Settings(Shared):
    """Units and bounds stand beside each field."""

    model_config = SettingsConfigDict(env_prefix="SERVING_")

    engines: str = Field(default="http://127.0.0.1:8100", description="vLLM addresses, comma between")
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
