"""The agent file: everything an engineer decides about an agent, in one validated YAML page.

An unknown key is an error that names the key and the nearest right one; every default is written here and nowhere else.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from feedback.metric_section import Duration, Metric, MetricName
from feedback.section import Section
from feedback.training_section import Training


class AgentFileError(ValueError):
    """The agent file cannot be used; the text names the key and the fix."""


def _address(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError("a tool is an address like tools.travel:flights; MCP servers are not supported")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
ToolAddress = Annotated[str, BeforeValidator(_address)]


class Model(Section):
    """The base model and how conversations are written for it."""

    path: Path
    template: Literal["desk", "hermes"] = "hermes"
    max_context: int = Field(default=2048, ge=64)
    max_completion: int = Field(default=256, ge=1, description="tokens one turn may sample")


class Limits(Section):
    """Bounds of one interaction; at a limit one last round runs without tools."""

    rounds: int = Field(default=6, ge=1)
    tool_calls: int = Field(default=12, ge=0)
    identical_calls: int = Field(default=3, ge=1)
    wall_s: float = Field(default=60, gt=0)
    tool_s: float = Field(default=10, gt=0)
    tool_output_tokens: int = Field(default=512, ge=8)


class Context(Section):
    """The state processor: what of a long episode the model still sees."""

    window_turns: int = Field(default=6, ge=1)


class Episode(Section):
    """When an episode closes (`idle` after its last record) and is taken (`grace` after that)."""

    idle: Duration = 1800.0
    grace: Duration = 600.0


class ClientSampling(Section):
    """Temperature of the traffic, and whether clients may set their own."""

    temperature: float = Field(default=1.0, gt=0, le=2)
    client: Literal["honour", "ignore"] = "honour"


class Weights(Section):
    """How much each channel weighs in a turn's reward."""

    outcome: float = 1.0
    quality: float = 1.0
    tools: float = 1.0
    progress: float = 0.5
    length: float = 0.2


class Penalties(Section):
    """Tool and format penalties, each at most 0."""

    malformed: float = Field(default=-0.2, le=0)
    unknown: float = Field(default=-0.2, le=0)
    arguments: float = Field(default=-0.1, le=0)
    empty: float = Field(default=-0.5, le=0)


class Subgoal(Section):
    """A named step of the work; `check` names a predicate on tool results (`tools.module:function`)."""

    name: str
    check: str


class Implicit(Section):
    """Trust in the next user message as a rating: `start` until `pairs` explicit ratings have been compared with it."""

    start: float = Field(default=0.3, ge=0, le=1)
    pairs: int = Field(default=50, ge=1)


class Rewards(Section):
    """How signals become a turn's reward (algorithms.md 9.2)."""

    weights: Weights = Weights()
    penalties: Penalties = Penalties()
    subgoals: tuple[Subgoal, ...] = ()
    implicit: Implicit = Implicit()
    rating_trust: float = Field(default=0.7, ge=0, le=1, description="tau of a rating on an earlier answer")
    turn_budget: int = Field(
        default=256, ge=8, description="tokens a turn may take before the length channel bites"
    )


class HoldoutSection(Section):
    """The frozen control."""

    share: Share = 0.1


class SetShare(Section):
    """Give the candidate this share of new episodes."""

    setShare: Share


class HoldUnits(Section):
    """How many units of the candidate must have an outcome."""

    units: int = Field(ge=1)


class Hold(Section):
    """Wait for units; passes when they are there and "worse" is below its bar."""

    hold: HoldUnits


class Nothing(Section):
    """`analysis: {}` has no options yet."""


class Analysis(Section):
    """Wait for a verdict. Only the last step may be one."""

    analysis: Nothing = Nothing()


Step = SetShare | Hold | Analysis


def _production_steps() -> tuple[Step, ...]:
    return (
        SetShare(setShare=0.05),
        Hold(hold=HoldUnits(units=30)),
        SetShare(setShare=0.25),
        Hold(hold=HoldUnits(units=100)),
        SetShare(setShare=0.5),
        Analysis(),
    )


class Prior(Section):
    """Informed prior of the bets, worth `strength` units: the champion's known mean, and `lift` above it for the candidate."""

    strength: float = Field(default=0.0, ge=0, description="0 keeps Beta(1/2, 1/2)")
    lift: float = Field(default=0.1, ge=0, le=1)


class Canary(Section):
    """How a candidate is tried (conventions.md 1; design 13)."""

    steps: tuple[Step, ...] = Field(default_factory=_production_steps)
    margin: float = Field(default=0.05, ge=0, lt=1)
    alphaPromote: float = Field(default=0.01, gt=0, lt=1)
    alphaRollback: float = Field(default=0.05, gt=0, lt=1)
    guardrailMargin: float = Field(default=0.05, ge=0, lt=1)
    guardrailAlpha: float = Field(default=0.01, gt=0, lt=1)
    onInconclusive: Literal["pause", "supersede"] = "pause"
    supersedeAfter: int = Field(
        default=250, ge=1, description="units after which a newer gated head takes over"
    )
    deadline: Duration = 7 * 86400.0
    prior: Prior = Prior()

    @model_validator(mode="after")
    def _ends_in_analysis(self) -> Self:
        if not self.steps or not isinstance(self.steps[-1], Analysis):
            raise ValueError("steps must end with {analysis: {}}: a share alone never promotes")
        if any(isinstance(step, Analysis) for step in self.steps[:-1]):
            raise ValueError("only the last step may be {analysis: {}}")
        return self


class Offer(Section):
    """When the head is offered as a version."""

    min_updates: int = Field(default=4, ge=1, description="accepted updates past the last offer")


class AgentFile(Section):
    """The whole file."""

    agent: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    model: Model
    system: str
    tools: tuple[ToolAddress, ...] = ()
    limits: Limits = Limits()
    context: Context = Context()
    metrics: dict[MetricName, Metric] = Field(default_factory=lambda: {"user_rating": Metric()})
    episode: Episode = Episode()
    sampling: ClientSampling = ClientSampling()
    rewards: Rewards = Rewards()
    training: Training = Training()
    holdout: HoldoutSection = HoldoutSection()
    canary: Canary = Canary()
    offer: Offer = Offer()

    @property
    def base_version(self) -> str:
        """The declared start, `<agent>-000000`."""
        return f"{self.agent}-000000"


def load_agent_file(path: Path) -> AgentFile:
    """Read and validate; a relative `model.path` is taken from the file's folder. Raises AgentFileError."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise AgentFileError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise AgentFileError(f"{path}: not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise AgentFileError(f"{path}: must be a mapping with keys such as 'agent' and 'model'")
    try:
        loaded = AgentFile.model_validate(raw)
    except ValidationError as error:
        raise AgentFileError(f"{path}: {explain(error)}") from error
    model = loaded.model.model_copy(update={"path": (path.parent / loaded.model.path).resolve()})
    return loaded.model_copy(update={"model": model})


def explain(error: ValidationError) -> str:
    """One line per fault: the key, what is wrong, and for a misspelt key the nearest right one."""
    lines = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(step) for step in fault["loc"])
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(), n=1)
            lines.append(f"{where}: unknown key" + (f"; did you mean {near[0]!r}?" if near else ""))
        else:
            lines.append(f"{where}: {fault['msg']}")
    return "; ".join(lines)


def _known_keys() -> set[str]:
    """Every key of every section, for the suggestion."""
    return {name for section in Section.__subclasses__() for name in section.model_fields}
