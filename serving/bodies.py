"""What clients send, as OpenAI's clients send it. Unknown fields are ignored; a wrong one is named in the error.

Text is text: content parts are joined, null is empty, and nothing here is trusted to be anything but characters.
"""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from serving.errors import ApiError, field_error

Short = Annotated[str, Field(max_length=512)]


class Body(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class TextPart(Body):
    """`{"type": "text", "text": …}`; a refusal is text too."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = ""
    refusal: str = ""


class FunctionCall(Body):
    """`arguments` is whatever text a model once wrote: it is not parsed here."""

    name: Annotated[str, Field(max_length=128)]
    arguments: str = ""


class HistoryCall(Body):
    """A call in an assistant message of the history."""

    id: str = ""
    type: str = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One message of the history the client keeps."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[HistoryCall] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "\n".join(part.text or part.refusal for part in self.content)
        return self.content or self.refusal or ""


class StreamOptions(Body):
    """`include_usage` asks for one more chunk."""

    include_usage: bool | None = False


class FunctionSpec(Body):
    """A tool that the client runs itself."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = ""
    parameters: dict[str, Any] | None = None


class ClientTool(Body):
    """As declared in `tools`."""

    type: Literal["function"] = "function"
    function: FunctionSpec


class ChatRequest(Body):
    """`POST /v1/chat/completions`."""

    model: Short
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2000)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    stop: str | list[str] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    user: Short | None = None
    safety_identifier: Short | None = None
    metadata: dict[str, Any] | None = None
    episode_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > 16 or any(not stop or len(stop) > 256 for stop in stops):
            raise ValueError("at most 16 stop strings of 1 to 256 characters")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for token, bias in (value or {}).items():
            if not token.isdecimal() or not -100 <= bias <= 100:
                raise ValueError("give token ids, each with a number from -100 to 100")
        return value

    def stops(self) -> tuple[str, ...]:
        """Stop strings in one form."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def longest(self) -> int | None:
        """Tokens that may be sampled in all, where the client says so."""
        return self.max_completion_tokens or self.max_tokens

    def alternatives(self) -> int | None:
        """How many other tokens are reported beside each one; None when no log-probabilities are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def named_user(self) -> str | None:
        """The user the body names."""
        return self.safety_identifier or self.user or None


B = TypeVar("B", bound=Body)


def read_json(raw: bytes) -> Any:
    """The body as JSON; NaN, Infinity and 1e309 are refused here."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error


def validate(kind: type[B], value: Any, *, status: int = 400, prefix: str = "") -> B:
    """The value as that body; ApiError names the first wrong field."""
    if not isinstance(value, dict):
        raise ApiError(
            status, f"{prefix or 'the body'} must be a JSON object", code="invalid_type", param=prefix or None
        )
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = _deepest(error.errors(include_url=False, include_input=False))
        where = _path(prefix, first["loc"])
        raise field_error(where, first["msg"], status=status) from error


def _deepest(faults: list[Any]) -> Any:
    """The first fault; where a field may be several things, the one that got furthest."""
    field = faults[0]["loc"][:-1]
    return max(
        (each for each in faults if each["loc"][: len(field)] == field), key=lambda each: len(each["loc"])
    )


def _path(prefix: str, steps: tuple[str | int, ...]) -> str:
    """`messages[0].content`, without the names of union members."""
    path = prefix
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.replace("_", "").isalnum() and step != "str" and not step[0].isupper():
            path += f".{step}" if path else step
    return path
