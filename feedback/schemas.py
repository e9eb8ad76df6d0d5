"""Every message that crosses a process. Unknown fields are refused when written and ignored when read; a message never changes after it is sent.

Times are integer milliseconds since the epoch. Scores lie in [0, 1]. Missing is None and never zero.
"""

import json
import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

SCHEMA_VERSION: Literal[1] = 1

INTERACTIONS = "ratchet.interactions"
FEEDBACK = "ratchet.feedback"
EXPERIENCES = "ratchet.experiences"
UPDATES = "ratchet.updates"
CREDITS = "ratchet.credits"
TRAFFIC_SPLITS = "ratchet.traffic-splits"
DEAD_LETTERS = "ratchet.dead-letters"
TOPICS = (INTERACTIONS, FEEDBACK, EXPERIENCES, UPDATES, CREDITS, TRAFFIC_SPLITS, DEAD_LETTERS)

Fault = Literal["unknown_tool", "malformed", "arguments", "exception", "timeout", "limit"]
Arm = Literal["champion", "candidate", "holdout"]
Millis = Annotated[int, Field(ge=0)]
Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Unreadable(ValueError):
    """Bytes that are not the message they should be; the text is the reason kept beside the dead letter."""


class Part(BaseModel):
    """A frozen piece of a message. What it holds is never part of an error's text: errors are logged."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        ser_json_inf_nan="null",
        hide_input_in_errors=True,
    )


class Message(Part):
    """A whole message: its key decides its partition, `to_bytes` is canonical (fixed field order, no spaces)."""

    schema_version: Literal[1] = SCHEMA_VERSION

    def to_bytes(self) -> bytes:
        """UTF-8 JSON. Field order is declaration order, so equal messages are equal bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """Read a message, ignoring fields it does not know; raises Unreadable with the first reason."""
        if not value:
            raise Unreadable("empty value")
        try:
            return cls.model_validate_json(value, extra="ignore")
        except ValidationError as error:
            raise Unreadable(first_reason(error)) from error


def first_reason(error: ValidationError) -> str:
    """`field.path: what is wrong`, without the offending content."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(step) for step in first["loc"]) or "value"
    return f"{where}: {first['msg']}"


class ToolCall(Part):
    """A call as sampled: `arguments` is the raw argument text, never repaired."""

    id: str
    name: str
    arguments: str
    error: str | None = None


class ToolOutcome(Part):
    """What a call returned, exactly as the model saw it."""

    call_id: str
    name: str
    content: str
    fault: Fault | None = None
    removed_tokens: int = 0


class Turn(Part):
    """One completion. `prompt_ids` + `token_ids` are what the engine saw and sampled; text is never re-tokenised.

    `logprobs` are processed mode: the log-probability under the distribution actually sampled (temperature
    included). A turn that breaks its own invariant is still kept: `flaw` says why it cannot be trained.
    """

    adapter_version: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_text: str
    shown_text: str
    stop_reason: Literal["stop", "length", "abort", "error"]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolOutcome, ...] = ()
    flaw: str | None = None

    @model_validator(mode="after")
    def _exact_or_flawed(self) -> Self:
        if self.flaw is None and (
            reason := turn_flaw(self.token_ids, self.logprobs, self.raw_text, self.shown_text)
        ):
            raise ValueError(f"turn is not exact ({reason}) and carries no flaw")
        return self


def turn_flaw(
    token_ids: tuple[int, ...], logprobs: tuple[float, ...], raw_text: str, shown_text: str
) -> str | None:
    """Why these ids, log-probabilities and texts cannot be trained together; None when they are exact."""
    if not token_ids:
        return "no_tokens"
    if len(token_ids) != len(logprobs):
        return "length_mismatch"
    if not all(math.isfinite(value) for value in logprobs):
        return "non_finite_logprob"
    if not raw_text.startswith(shown_text):
        return "text_mismatch"
    return None


class Sampling(Part):
    """How the engine sampled. Anything but plain temperature sampling makes the turn untrainable."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    other: tuple[str, ...] = ()

    def untrainable_reason(self) -> str | None:
        """The reason this traffic is not trained, or None (design 13, Sampling)."""
        if not 0.0 < self.temperature <= 2.0:
            return "temperature"
        if self.top_p < 1.0:
            return "top_p"
        if self.top_k not in (-1, 0):
            return "top_k"
        return self.other[0] if self.other else None


class Usage(Part):
    """Tokens of all turns of one interaction."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Status(StrEnum):
    """How an interaction ended."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"
    LIMITED = "limited"


class Interaction(Message):
    """One request and its reply, with the assignment that was stored at the episode's first interaction."""

    kind: Literal["interaction"] = "interaction"
    agent: str
    episode_id: str
    response_id: str
    index: int = Field(ge=0, description="position in the episode, from 0")
    parent_response_id: str | None = Field(
        default=None, description="the reply this one answers; a branch names an older one"
    )
    key_owner: str
    user: str | None = Field(
        default=None, description="hash of the key owner and the user's id; None when nobody was named"
    )
    arm: Arm
    propensity: Unit
    generation: int = Field(ge=0, description="of the traffic split in force at assignment")
    canary_id: str | None = None
    adapter_version: str
    turns: tuple[Turn, ...]
    user_text: str = Field(default="", description="the newest user message, which the implicit signal reads")
    status: Status
    flags: tuple[str, ...] = ()
    usage: Usage = Usage()
    sampling: Sampling = Sampling()
    latency_ms: float = Field(default=0.0, ge=0)
    started_at: Millis
    ended_at: Millis


class EpisodeEnd(Message):
    """The client closed the episode: it is joined now instead of after `episode.idle`."""

    kind: Literal["episode_end"] = "episode_end"
    agent: str
    episode_id: str
    ended_at: Millis


class Withdrawal(Message):
    """The person took the episode back: it is tombstoned everywhere."""

    kind: Literal["withdrawal"] = "withdrawal"
    agent: str
    episode_id: str
    withdrawn_at: Millis


EpisodeRecord = Annotated[Interaction | EpisodeEnd | Withdrawal, Field(discriminator="kind")]
_EPISODE_RECORD: TypeAdapter[Interaction | EpisodeEnd | Withdrawal] = TypeAdapter(EpisodeRecord)


def read_episode_record(value: bytes | None) -> Interaction | EpisodeEnd | Withdrawal:
    """Read one value of `ratchet.interactions`; raises Unreadable."""
    if not value:
        raise Unreadable("empty value")
    try:
        return _EPISODE_RECORD.validate_json(value, extra="ignore")
    except ValidationError as error:
        raise Unreadable(first_reason(error)) from error


class Source(Part):
    """Who gave a piece of feedback."""

    type: Literal["human", "llm_judge", "code"] = "human"
    id: str | None = None


class ComparedReplies(Part):
    """Of two replies, which is better; each with the episode it is found in."""

    chosen: str = Field(description="response id of the better reply")
    rejected: str
    chosen_episode: str
    rejected_episode: str
    same_question: bool = Field(
        description="both answer the same conversation; otherwise nothing can be learned"
    )


class Feedback(Message):
    """One rating, correction, comparison or comment. (id, revision) is unique; the newest revision of a natural key counts."""

    id: str
    revision: int = Field(ge=1)
    op: Literal["create", "update", "delete"]
    agent: str
    episode_id: str
    response_id: str | None = None
    tool_call_id: str | None = None
    name: str
    value: bool | float | str | None = None
    score: Unit | None = Field(
        default=None, description="value mapped to [0, 1] by the metric; None for text"
    )
    comment: str | None = None
    correction: str | None = Field(default=None, description="what `response_id` should have said")
    comparison: ComparedReplies | None = Field(
        default=None, description="`response_id` is the newer of the two replies"
    )
    key_owner: str
    rater: str = Field(description="hash that stands for the person; design 13, Raters")
    source: Source = Source()
    given_at: Millis
    received_at: Millis


class Channels(Part):
    """A turn's reward by channel (algorithms.md 9.2). `tau` is the trust in `rating`; the reward model fills 1 - tau."""

    rating: Annotated[float, Field(ge=-1, le=1)] | None = None
    tau: Unit = 0.0
    tools: Annotated[float, Field(ge=-1.5, le=0)] = 0.0
    progress: float = 0.0
    length: Annotated[float, Field(ge=-1, le=0)] = 0.0


class PricedTurn(Part):
    """One turn of an episode in order, with what was known about it at pricing."""

    response_id: str
    interaction: int = Field(ge=0, description="index of its interaction in the episode")
    ends_interaction: bool
    turn: Turn
    sampling: Sampling
    channels: Channels
    untrainable: str | None = None


class Comparison(Part):
    """One person's choice between two answers to the same conversation; either may be in another episode."""

    chosen: str = Field(description="response id of the better reply")
    rejected: str
    chosen_episode: str
    rejected_episode: str
    rater: str


class Correction(Part):
    """What a reply should have said: a better answer than the one of `response_id` to the same conversation."""

    response_id: str
    tool_call_id: str | None = Field(
        default=None, description="the step that it is about, where one is named"
    )
    text: str
    rater: str


class OutcomeSource(StrEnum):
    """Where the one bit of a unit came from."""

    THUMB = "thumb"
    IMPLICIT = "implicit"


class Judgement(Part):
    """What the judge of that time made of the words after each reply, and how far it was believed: a replay prices with it."""

    trust: Unit
    verdicts: dict[str, Literal[-1, 1]] = Field(description="by response id; silence is left out")


class Indicators(Part):
    """Per-episode facts that the guardrails bet on, known whether or not anybody rated."""

    request_error: bool = False
    invalid_tool_call: bool = False
    clarifying_question: bool = False
    latency_ms: float = 0.0
    completion_tokens: int = 0


class Experience(Message):
    """A closed episode joined with its feedback and priced. `id` is the hash of its inputs; the newest revision counts."""

    id: str
    revision: int = Field(ge=1)
    agent: str
    episode_id: str
    key_owner: str
    user: str | None = None
    rater: str = Field(
        description="who the influence cap counts: whoever gave the outcome's newest rating, else the user, else the episode"
    )
    arm: Arm
    propensity: Unit
    generation: int
    canary_id: str | None = None
    adapter_version: str = Field(description="of the first interaction: the assigned one")
    turns: tuple[PricedTurn, ...]
    user_texts: tuple[str, ...] = Field(description="the user message of each interaction")
    ratings: int = Field(ge=0, description="effective ratings joined")
    comparisons: tuple[Comparison, ...] = Field(
        default=(), description="for the reward model; one person's newest choice of each pair"
    )
    corrections: tuple[Correction, ...] = Field(
        default=(), description="one person's newest of each reply or step"
    )
    thumb: Literal[0, 1] | None = Field(default=None, description="the explicit bit of the last rated answer")
    outcome: Literal[0, 1] | None = Field(
        default=None, description="the unit's one bit; None when nobody reacted"
    )
    outcome_source: OutcomeSource | None = None
    outcome_reward: Annotated[float, Field(ge=-1, le=1)] | None = Field(
        default=None, description="o: added at `outcome_turn`; None = unknown, use the baseline"
    )
    outcome_turn: int | None = Field(
        default=None,
        ge=0,
        description="index into `turns` of the turn that ended the work, where the outcome lands; None = no turn",
    )
    judgement: Judgement | None = None
    indicators: Indicators = Indicators()
    trainable: bool
    reason: str | None = Field(default=None, description="why the policy does not train on it")
    flags: tuple[str, ...] = ()
    withdrawn: bool = False
    started_at: Millis
    closed_at: Millis
    cutoff_at: Millis = Field(
        description="close + grace: when policy and canary take it, once, at its newest revision"
    )


_VERSION = re.compile(r"(?P<agent>[a-z0-9][a-z0-9-]*)-(?P<number>[0-9]{6})")


def version_name(agent: str, number: int) -> str:
    """`travel-desk-000042`."""
    return f"{agent}-{number:06d}"


def version_number(version: str) -> int:
    """42 of `travel-desk-000042`; ValueError when the name is not one of ours."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version name like 'travel-desk-000042'")
    return int(match["number"])


def _numbered(version: str) -> str:
    version_number(version)
    return version


Version = Annotated[str, AfterValidator(_numbered)]


class AdapterRef(Part):
    """A version and the bytes it stands for. `uri` and `digest` are None only for the base model itself (`-000000`)."""

    version: Version
    uri: str | None = None
    digest: str | None = None


class Decision(StrEnum):
    """What the trainer did with an update."""

    ACCEPTED = "accepted"
    SHRUNK = "shrunk"
    REFUSED = "refused"


class Update(Message):
    """One policy update. `version` is set only when it is offered to the canary (design 13, Offering)."""

    update_id: str
    agent: str
    version: Version | None = None
    parent: str = Field(description="the version this update's line started from")
    reference: str
    digest: str | None = None
    uri: str | None = None
    decision: Decision
    reasons: tuple[str, ...] = ()
    measures: dict[str, float] = Field(default_factory=dict)
    episodes: int = 0
    rated: int = 0
    episode_ids: tuple[str, ...] = ()
    at: Millis


class TurnCredit(Part):
    """What one turn was credited, or why it was not trained."""

    response_id: str
    turn: int
    advantage: float | None = None
    reward: float | None = None
    channels: Channels | None = None
    unused: str | None = None


class Credit(Message):
    """What an update made of one episode; serving shows it under GET /v1/episodes/{id}."""

    agent: str
    episode_id: str
    revision: int
    update_id: str
    turns: tuple[TurnCredit, ...]
    at: Millis


class Holdout(Part):
    """The frozen control: a share of the users who stay on one version for ever."""

    ref: AdapterRef
    share: Unit
    salt: str


class Verdict(StrEnum):
    """How a canary ended."""

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"
    ABORTED = "aborted"


class VersionVerdict(Part):
    """A finished trial, newest last in a split: the trainer follows the champion by it."""

    version: str
    verdict: Verdict
    reason: str


class TrafficSplit(Message):
    """Which versions serving runs, at what share. One writer (the controller); `generation` only grows."""

    agent: str
    generation: int = Field(ge=0, description="0 is serving's own, before the controller has spoken")
    champion: AdapterRef
    candidate: AdapterRef | None = None
    canary_id: str | None = None
    share: Unit = 0.0
    salt: str = ""
    holdout: Holdout | None = None
    verdicts: tuple[VersionVerdict, ...] = ()
    at: Millis

    @model_validator(mode="after")
    def _share_needs_candidate(self) -> Self:
        if self.share > 0 and self.candidate is None:
            raise ValueError("share > 0 needs a candidate")
        return self


class DeadLetter(Message):
    """A record nobody could read, with where it came from."""

    topic: str
    partition: int
    offset: int
    reason: str
    value_base64: str | None
    at: Millis


def canonical(value: Any) -> bytes:
    """Bytes of a JSON-able value that are equal whenever the value is (sorted keys, no spaces, no NaN)."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()
