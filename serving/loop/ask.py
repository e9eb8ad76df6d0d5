"""What one interaction asks of the agent loop, and what the loop tells while it runs."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from feedback.schemas import ToolOutcome
from serving.engines.engine import Sampled
from serving.loop.client_tools import ANY_TOOL, ToolChoice
from serving.loop.logprobs import TokenScore
from tools.parse import Signatures


class Sampler(Protocol):
    """Samples with one version: a lease, or a double."""

    def sample(
        self, prompt_ids: Sequence[int], *, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One interaction: where it starts and what bounds it."""

    episode_id: str
    version: str
    prompt_ids: list[int]
    params: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None  # over all turns
    stops: tuple[str, ...] = ()
    client_tools: Signatures = field(default_factory=dict)
    choice: ToolChoice = ANY_TOOL
    parallel: bool = True  # whether one turn may hand several calls to the client
    top_logprobs: int | None = None  # None: the client wants no log-probabilities
    answer_params: Mapping[str, Any] | None = None  # bind the answer to a grammar
    call_params: Mapping[str, Any] | None = None  # bind the body of a forced call


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text for the client, and the scores of the tokens that it completes."""

    text: str
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A server-side tool runs now."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """It answered."""

    outcome: ToolOutcome


Event = TextDelta | ToolStarted | ToolEnded
