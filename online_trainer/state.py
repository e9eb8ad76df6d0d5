"""Everything the trainer knows besides tensors: the JSON half of a checkpoint.

Invariant: whatever decides the next update is here or in the checkpoint's tensors, so a killed trainer goes on to the same bits.
"""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, ConfigDict, Field

from feedback.agent_file import AgentFile
from feedback.schemas import Experience, Update
from online_trainer.buffer import Age, Buffer, Line
from online_trainer.credit.scale import RunningScale
from online_trainer.lessons import Lesson
from online_trainer.pause import Pause
from online_trainer.reward_model import Centre
from online_trainer.update.kl import AdaptiveBeta
from online_trainer.update.learning_rate import LearningRate


class Version(BaseModel):
    """A version as the trainer knows it: where its line stood, and where its weights are."""

    at_update: int
    serial: int | None = Field(default=None, description="checkpoint that holds its weights and optimizer")
    uri: str | None = None
    digest: str | None = None
    rejected: bool = False


class Publication(BaseModel):
    """An accepted update on its way to MLflow; `update` is sent when it is an offer and has its version."""

    model_config = ConfigDict(frozen=True)

    update: Update
    folder: str
    digest: str
    step: int
    at_update: int
    serial: int
    metrics: dict[str, float]
    offer: bool


class Letter(BaseModel):
    """A message for the bus that is sent until it was acknowledged; its content is fixed, so sending twice is harmless."""

    model_config = ConfigDict(frozen=True)

    topic: str
    key: str
    value: str
    at: int


class Progress(BaseModel):
    """The whole of it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    agent: str
    seed: int
    threads: int
    dtype: str
    serial: int = 0
    positions: list[tuple[str, int, int]] = []
    generation: int = -1
    champion: str
    return_to: str | None = None
    update: int = 0
    accepted: int = 0
    since_offer: int = 0
    head_folder: str | None = Field(default=None, description="adapter folder of the newest accepted update")
    reserved: int = 0
    critic_pretrained: bool = False
    versions: dict[str, Version]
    rate: LearningRate
    beta: AdaptiveBeta
    pause: Pause = Pause()
    norms: list[float] = Field(default=[], description="gradient norms of the newest minibatches")
    scale: RunningScale = RunningScale()
    centre: Centre = Centre()
    pending: list[str] = []
    pending_at: int = 0
    publications: list[Publication] = []
    letters: list[Letter] = []
    decisions: dict[str, int] = {}
    waiting: list[Experience] = []
    settled: dict[str, int] = {}
    untrainable: dict[str, int] = {}
    taken: int = 0
    lessons: list[Lesson] = []
    order: list[str] = []
    unseen: list[Experience] = []

    @classmethod
    def fresh(cls, agent: AgentFile, *, seed: int, threads: int, dtype: str) -> Progress:
        """Before the first experience: the head is the base."""
        base = agent.base_version
        return cls(
            agent=agent.agent,
            seed=seed,
            threads=threads,
            dtype=dtype,
            champion=base,
            versions={base: Version(at_update=0)},
            rate=LearningRate.start(agent.training.optimizer),
            beta=AdaptiveBeta.start(agent.training.kl_reference),
        )

    @property
    def parent(self) -> str:
        """The newest version of the head's own line."""
        return max(name for name, version in self.versions.items() if not version.rejected)

    def at_head(self) -> set[str]:
        """Versions that have the head's present weights: none since the first update accepted after them."""
        return {
            name
            for name, version in self.versions.items()
            if not version.rejected and version.at_update == self.accepted
        }

    def age(self, now_ms: int) -> Age:
        """What staleness is measured against."""
        lines = {name: Line(version.at_update, version.rejected) for name, version in self.versions.items()}
        return Age(now_ms, self.accepted, lines)

    def buffer(self) -> Buffer:
        """The buffer as it was saved."""
        waiting = {experience.episode_id: experience for experience in self.waiting}
        return Buffer(waiting, dict(self.settled), Counter(self.untrainable), self.taken)
