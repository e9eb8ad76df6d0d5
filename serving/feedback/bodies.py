"""What clients send as feedback, under the names of other tools too. Two names for one thing must say the same."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from serving.bodies import Body, Short, read_json, validate
from serving.errors import field_error

LARGEST_BATCH = 100
_ALIASES = (
    ("response_id", "inference_id", "run_id"),
    ("episode_id", "trace_id"),
    ("name", "metric_name", "key"),
    ("value", "score"),
    ("comment", "rationale"),
    ("correction", "expected"),
)
_PAIRS, _KEY_LENGTH = 16, 64
DAY_S = 86_400
B = TypeVar("B", bound=Body)


class FeedbackSource(Body):
    """Who gave it; a program says so."""

    type: Literal["human", "llm_judge", "code"] = "human"
    id: Short | None = None


class Given(Body):
    """One object of `POST /v1/feedback`, aliases of other tools included; a comparison names two replies."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,80}$")] | None = None
    response_id: Short | None = None
    inference_id: Short | None = None
    run_id: Short | None = None
    episode_id: Short | None = None
    trace_id: Short | None = None
    tool_call_id: Short | None = None
    name: Short | None = None
    metric_name: Short | None = None
    key: Short | None = None
    value: Any = None
    score: Any = None
    comment: Annotated[str, Field(max_length=8192)] | None = None
    rationale: Annotated[str, Field(max_length=8192)] | None = None
    correction: str | dict[str, Any] | None = None
    expected: str | dict[str, Any] | None = None
    source: FeedbackSource | None = None
    timestamp: Annotated[str, Field(max_length=64)] | None = None
    metadata: dict[Short, Short] | None = None
    dryrun: bool = False
    chosen: Short | None = None
    rejected: Short | None = None

    def metric(self) -> str | None:
        """The metric's name under any of its names."""
        return self.name or self.metric_name or self.key

    def target_response(self) -> str | None:
        """The response's id under any of its names."""
        return self.response_id or self.inference_id or self.run_id

    def target_episode(self) -> str | None:
        """The episode's id under any of its names."""
        return self.episode_id or self.trace_id

    def given_value(self) -> Any:
        """The value under any of its names."""
        return self.value if self.value is not None else self.score

    def value_field(self) -> str:
        """The name it came under."""
        return "value" if self.value is not None or self.score is None else "score"

    def given_comment(self) -> str | None:
        """The comment under any of its names."""
        return self.comment if self.comment is not None else self.rationale

    def given_correction(self) -> str | dict[str, Any] | None:
        """The correction under any of its names."""
        return self.correction if self.correction is not None else self.expected

    def correction_field(self) -> str:
        """The name it came under."""
        return "correction" if self.correction is not None or self.expected is None else "expected"


class GivenPatch(Body):
    """`PATCH /v1/feedback/{id}`: only what is given changes."""

    value: Any = None
    comment: Annotated[str, Field(max_length=8192)] | None = None
    correction: str | dict[str, Any] | None = None
    metadata: dict[Short, Short] | None = None


class TokenRequest(Given):
    """`POST /v1/feedback/tokens`: a target, as fields or under `target`, one metric, and how long."""

    expires_in: Annotated[int, Field(ge=1, le=DAY_S, description="seconds")] = 3 * 3600


class TensorZeroBody(Body):
    """TensorZero's `POST /feedback`, which refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    inference_id: Short | None = None
    episode_id: Short | None = None
    metric_name: Short
    value: Any
    tags: dict[Short, Short] | None = None
    dryrun: bool | None = None
    internal: Literal[False] | None = None

    def given(self) -> dict[str, Any]:
        """The same as a body of ours."""
        return {
            "response_id": self.inference_id,
            "episode_id": self.episode_id,
            "name": self.metric_name,
            "value": self.value,
            "metadata": self.tags,
            "dryrun": bool(self.dryrun),
        }


def read_feedback(raw: bytes) -> tuple[list[Given], bool]:
    """(the bodies, whether they are a batch)."""
    value = read_json(raw)
    if not isinstance(value, dict) or "feedback" not in value:
        return [read_given(value)], False
    items = value["feedback"]
    if not isinstance(items, list) or not 1 <= len(items) <= LARGEST_BATCH:
        raise field_error("feedback", f"a list of 1 to {LARGEST_BATCH} objects")
    return [read_given(item, prefix=f"feedback[{index}]") for index, item in enumerate(items)], True


def read_given(value: Any, *, prefix: str = "") -> Given:
    """One body. Raises 422 with the field."""
    return _clear(validate(Given, value, status=422, prefix=prefix), prefix)


def read_patch(raw: bytes) -> GivenPatch:
    """A patch. Raises 422 with the field."""
    return _clear(validate(GivenPatch, read_json(raw), status=422), "")


def read_token_request(raw: bytes) -> TokenRequest:
    """A request for a token. Raises 422 with the field."""
    value = read_json(raw)
    if isinstance(value, dict) and isinstance(target := value.get("target"), dict):
        value = {**{name: each for name, each in value.items() if name != "target"}, **target}
    return _clear(validate(TokenRequest, value, status=422), "")


def _clear(body: B, prefix: str) -> B:
    """Refuse two names that disagree, a NUL (no database keeps it), and metadata beyond OpenAI's bounds."""
    given = {name: value for name, value in dict(body).items() if value is not None}
    for names in _ALIASES:
        said = [(name, given[name]) for name in names if name in given]
        for name, value in said[1:]:
            if value != said[0][1] or isinstance(value, bool) != isinstance(said[0][1], bool):
                raise field_error(name, f"says something else than {said[0][0]}", code="ambiguous", of=prefix)
    for name, value in given.items():
        if _holds_nul(value):
            raise field_error(name, "must not hold a NUL character", of=prefix)
    metadata = given.get("metadata", {})
    if len(metadata) > _PAIRS or any(len(key) > _KEY_LENGTH for key in metadata):
        message = f"at most {_PAIRS} pairs, each key of at most {_KEY_LENGTH} characters"
        raise field_error("metadata", message, of=prefix)
    return body


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict | Body):
        return any(_holds_nul(part) for pair in dict(value).items() for part in pair)
    return isinstance(value, list) and any(_holds_nul(part) for part in value)
