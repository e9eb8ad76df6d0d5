"""A controller over real parts that need no network: SQLite in a folder, MemoryBus, a clock that tests move, and a registry
that keeps what it is told (or is away)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from deploy.canary import history, ledger
from deploy.canary.controller import Controller
from deploy.canary.intake import Intake
from deploy.canary.projection import Projection
from deploy.canary.steering import Steering
from deploy.canary.tables import create_tables
from feedback.agent_file import AgentFile
from feedback.bus import MemoryBus
from feedback.outbox import Outbox
from feedback.schemas import (
    EXPERIENCES,
    TRAFFIC_SPLITS,
    UPDATES,
    Arm,
    Decision,
    Experience,
    Indicators,
    TrafficSplit,
    Update,
)
from feedback.store import open_database

AGENT = AgentFile.model_validate(
    {
        "agent": "travel-desk",
        "model": {"path": "model", "template": "desk"},
        "system": "You are a travel desk agent.",
        "canary": {
            "steps": [{"setShare": 0.2}, {"hold": {"units": 16}}, {"setShare": 0.5}, {"analysis": {}}],
            "alphaPromote": 0.05,
            "alphaRollback": 0.05,
            "margin": 0.05,
            "onInconclusive": "supersede",
            "supersedeAfter": 250,
        },
        "holdout": {"share": 0.1},
    }
)
SECRET = "tests-secret"


class Away(RuntimeError):
    """What this registry raises while `down`."""


class Taken(RuntimeError):
    """What this registry raises for a name that means other bytes."""


@dataclass(frozen=True)
class Known:
    """A registered version."""

    version: str
    digest: str
    uri: str
    parent: str | None


@dataclass(frozen=True)
class Logged:
    """A run."""

    model_uri: str


@dataclass
class MemoryRegistry:
    """Versions, runs and aliases in memory."""

    down: bool = False
    aliases: dict[str, str | None] = field(default_factory=dict)
    versions: dict[str, Known] = field(default_factory=dict)
    runs: dict[str, Path | None] = field(default_factory=dict)

    def set_aliases(self, aliases: Mapping[str, str | None]) -> None:
        self._answer()
        self.aliases |= aliases

    def find_digest(self, digest: str) -> Known | None:
        self._answer()
        return next((known for known in self.versions.values() if known.digest == digest), None)

    def find_version(self, version: str) -> Known | None:
        self._answer()
        return self.versions.get(version)

    def next_number(self) -> int:
        self._answer()
        return 1 + max((int(name[-6:]) for name in self.versions), default=0)

    def log_update(
        self,
        update_measures: Mapping[str, float],
        *,
        step: int,
        params: Mapping[str, str],
        adapter_dir: Path | None,
        tags: Mapping[str, str],
    ) -> Logged:
        self._answer()
        self.runs[tags["ratchet.update_id"]] = adapter_dir
        return Logged(f"models:/m-{tags['ratchet.update_id']}")

    def create_version(self, logged_uri: str, *, version: str, digest: str, tags: Mapping[str, str]) -> None:
        self._answer()
        known = self.versions.get(version)
        if known is not None and known.digest != digest:
            raise Taken(version)
        self.versions[version] = Known(version, digest, logged_uri, tags.get("adapter.parent"))

    def _answer(self) -> None:
        if self.down:
            raise Away("registry is down")


class Stage:
    """Everything around one controller. `restart` is what a kill -9 leaves: the database and the bus, nothing in memory."""

    def __init__(self, home: Path, *, agent: AgentFile = AGENT) -> None:
        self.home = home
        self.agent = agent
        self.bus = MemoryBus()
        self.registry = MemoryRegistry()
        self.now = 1_000_000
        self._episodes = 0
        self.restart()

    def restart(self) -> None:
        self.engine: Engine = open_database("deploy", home=self.home)
        create_tables(self.engine)
        self.outbox = Outbox(self.engine, 1000)
        self.steering = Steering(self.engine, self.outbox, self.agent, clock=lambda: self.now)
        self.steering.open()
        self.intake = Intake(self.bus, self.engine, self.outbox, partitions=2, poll_s=0.0)
        self.projection = Projection(self.engine, self.registry, down=Away)
        self.controller = Controller(
            self.steering, self.intake, self.outbox, projection=self.projection, wake=lambda: None
        )

    def turn(self) -> None:
        """One turn, delivered and projected."""
        self.controller.turn()
        self.outbox.drain(self.bus)
        self.projection.write()

    def settle(self) -> None:
        """Let every cut-off pass, and turn until nothing moves."""
        self.now += 60_000
        for _ in range(3):
            self.turn()

    def offer(self, number: int, *, parent: int = 0, **changes: Any) -> str:
        """The trainer offers a version."""
        version = f"{self.agent.agent}-{number:06d}"
        fields: dict[str, Any] = {
            "update_id": f"up_{number}",
            "agent": self.agent.agent,
            "version": version,
            "parent": f"{self.agent.agent}-{parent:06d}",
            "reference": self.agent.base_version,
            "digest": f"sha256:{number}",
            "uri": f"models:/m-{number}",
            "decision": Decision.ACCEPTED,
            "at": self.now,
        }
        update = Update.model_validate(fields | changes)
        self.bus.append(UPDATES, self.agent.agent, update.to_bytes(), timestamp_ms=self.now)
        return version

    def episode(self, arm: Arm, outcome: int | None, **changes: Any) -> str:
        """An episode under the split in force closes now and is cut off 15 s later. Returns its id."""
        self._episodes += 1
        split = changes.pop("split", None) or self.split
        name = changes.pop("episode_id", f"ep_{self._episodes}")
        revision = changes.pop("revision", 1)
        refs = {
            "champion": split.champion.version,
            "candidate": split.candidate.version if split.candidate else "",
            "holdout": split.holdout.ref.version if split.holdout else "",
        }
        fields: dict[str, Any] = {
            "id": f"{name}-{revision}",
            "revision": revision,
            "agent": self.agent.agent,
            "episode_id": name,
            "key_owner": "tests",
            "rater": name,
            "arm": arm,
            "propensity": split.share,
            "generation": split.generation,
            "canary_id": split.canary_id,
            "adapter_version": refs[arm],
            "turns": (),
            "user_texts": (),
            "ratings": 0 if outcome is None else 1,
            "thumb": outcome,
            "outcome": outcome,
            "indicators": Indicators(latency_ms=100.0, completion_tokens=20),
            "trainable": True,
            "started_at": self.now - 5_000,
            "closed_at": self.now,
            "cutoff_at": self.now + 15_000,
        }
        experience = Experience.model_validate(fields | changes)
        self.bus.append(EXPERIENCES, name, experience.to_bytes(), timestamp_ms=self.now)
        return name

    def traffic(self, champion: float, candidate: float, *, episodes: int) -> None:
        """Evenly spread successes at about the split's share, taken in twenties, until its canary has ended."""
        credit = {"champion": 0.0, "candidate": 0.0}
        due, canary = 0.0, self.split.canary_id
        for index in range(episodes):
            if index % 20 == 0:
                split = self.split
            due += split.share
            arm: Arm = "champion"
            if due >= 1.0:
                due, arm = due - 1.0, "candidate"
            credit[arm] += champion if arm == "champion" else candidate
            success = int(credit[arm] >= 1.0 - 1e-9)
            credit[arm] -= success
            self.episode(arm, success, split=split)
            if index % 20 == 19:
                self.settle()
                if self.split.canary_id != canary:
                    return
        self.settle()

    @property
    def split(self) -> TrafficSplit:
        """The newest split as the ledger has it."""
        with self.engine.connect() as conn:
            split = history.newest_split(conn)
        assert split is not None
        return split

    def published(self) -> list[TrafficSplit]:
        """Every split on the bus, in order of generation."""
        records = self.bus.read(TRAFFIC_SPLITS)
        return sorted(
            (TrafficSplit.from_bytes(record.value) for record in records), key=lambda each: each.generation
        )

    def canaries(self) -> list[ledger.CanaryRow]:
        """All, oldest first."""
        with self.engine.connect() as conn:
            return ledger.list_canaries(conn)

    def events(self) -> list[dict[str, Any]]:
        """All, oldest first."""
        with self.engine.connect() as conn:
            return history.list_events(conn, limit=1000)
