"""The controller on MemoryBus and SQLite: what it reads, what it decides, and that a kill at any boundary changes nothing."""

from pathlib import Path

import pytest
from sqlalchemy import select

from deploy.canary import ledger
from deploy.canary.judging import judge_units
from deploy.canary.projection import Projection
from deploy.canary.steering import Steering
from deploy.canary.tables import create_tables
from deploy.canary.trial import Illegal, Phase
from deploy.canary.units import UNITS
from feedback.bus import MAX_VALUE_BYTES
from feedback.outbox import Outbox
from feedback.schemas import DEAD_LETTERS, EXPERIENCES, TRAFFIC_SPLITS, DeadLetter, Verdict
from feedback.store import Zombie, open_database
from tests.deploy.parts import AGENT, Away, Stage
from tests.running import eventually

BASE = "travel-desk-000000"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_first_split_is_newer_than_servings_own_with_the_start_as_anchor(stage: Stage) -> None:
    stage.turn()
    (split,) = stage.published()
    assert (split.generation, split.champion.version, split.candidate, split.share) == (1, BASE, None, 0.0)
    assert split.holdout is not None
    assert (split.holdout.ref.version, split.holdout.share) == (BASE, 0.1)
    stage.restart()
    stage.turn()
    assert len(stage.published()) == 1


def test_an_offer_is_tried_promoted_and_projected(stage: Stage) -> None:
    version = stage.offer(1)
    stage.turn()
    split = stage.split
    assert split.candidate is not None
    assert (split.candidate.version, split.candidate.uri, split.share) == (version, "models:/m-1", 0.2)
    assert split.salt == split.canary_id
    assert stage.registry.aliases["challenger"] == version
    stage.traffic(0.4, 0.9, episodes=300)
    split = stage.split
    assert (split.champion.version, split.candidate, split.share) == (version, None, 0.0)
    assert [(each.version, each.verdict) for each in split.verdicts] == [(version, Verdict.PROMOTED)]
    assert stage.registry.aliases == {"champion": version, "previous-champion": BASE, "challenger": None}
    (row,) = stage.canaries()
    assert (row.phase, row.verdict) == (Phase.SUCCEEDED, Verdict.PROMOTED)
    steps = [(event["from"], event["to"]) for event in stage.events() if event["to"]]
    assert steps[0] == ("Pending", "Progressing")
    assert steps[-2:] == [("Progressing", "Promoting"), ("Promoting", "Succeeded")]
    assert [each.generation for each in stage.published()] == list(range(1, len(stage.published()) + 1))


def test_a_bad_candidate_is_rolled_back_and_stays_refused(stage: Stage) -> None:
    version = stage.offer(1)
    stage.turn()
    stage.traffic(0.8, 0.1, episodes=300)
    assert (stage.split.champion.version, stage.split.candidate) == (BASE, None)
    assert stage.split.verdicts[-1].verdict is Verdict.ROLLED_BACK
    generation = stage.split.generation
    stage.offer(1)
    stage.offer(2, digest="sha256:1")
    stage.settle()
    assert stage.split.generation == generation
    assert len(stage.canaries()) == 1
    assert any(f"{version} was refused" in event["reason"] for event in stage.events())


def test_descendants_of_a_refused_version_are_not_tried(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.offer(2, parent=1)
    stage.traffic(0.8, 0.1, episodes=300)
    stage.settle()
    first, second = stage.canaries()
    assert first.verdict is Verdict.ROLLED_BACK
    assert (second.phase, second.verdict) == (Phase.ABORTED, Verdict.ABORTED)
    assert "ancestor" in second.reason


def test_retry_is_the_explicit_act(stage: Stage) -> None:
    version = stage.offer(1)
    stage.turn()
    (row,) = stage.canaries()
    stage.steering.abort(row.canary_id, actor="ada")
    again = stage.steering.retry(row.canary_id, actor="ada")
    with pytest.raises(Illegal):
        stage.steering.retry(row.canary_id, actor="ada")
    stage.turn()
    split = stage.split
    assert split.canary_id == again != row.canary_id
    assert split.candidate is not None
    assert split.candidate.version == version
    retried = stage.canaries()[-1]
    assert retried.state is not None
    assert retried.state.units == 0


def test_only_one_canary_and_the_newest_waiting_offer(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.offer(2, parent=1)
    stage.offer(3, parent=2)
    stage.settle()
    phases = [(row.version[-1], row.phase) for row in stage.canaries()]
    assert phases == [("1", Phase.PROGRESSING), ("2", Phase.SUPERSEDED), ("3", Phase.PENDING)]


def test_an_inconclusive_canary_gives_way(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.offer(2, parent=1)
    stage.traffic(0.5, 0.47, episodes=320)
    verdicts = [row.verdict for row in stage.canaries()]
    assert verdicts == [Verdict.SUPERSEDED, None]
    assert stage.split.candidate is not None
    assert stage.split.candidate.version.endswith("2")


def test_a_unit_is_its_newest_revision_at_the_cutoff_and_only_once(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    name = stage.episode("candidate", None)
    cutoff = stage.now + 15_000
    stage.turn()
    stage.now += 10_000
    stage.episode("candidate", 1, episode_id=name, revision=2, cutoff_at=cutoff)
    stage.now += 20_000
    stage.episode("candidate", 0, episode_id=name, revision=3, cutoff_at=cutoff)
    stage.settle()
    stage.episode("candidate", 0, episode_id=name, revision=4, cutoff_at=cutoff)
    stage.settle()
    state = stage.canaries()[0].state
    assert state is not None
    assert (state.units, float(state.worse.total1), state.episodes1) == (1, 1.0, 1)


def test_units_wait_while_their_partition_is_not_read_to_the_end(stage: Stage) -> None:
    """A controller that was away reads the revision written before the cut-off first, however late it is by its clock."""
    stage.offer(1)
    stage.turn()
    name = stage.episode("candidate", None)
    cutoff = stage.now + 15_000
    for index in range(1200):
        stage.episode("champion", 1, agent="another", episode_id=name, revision=index + 2)
    stage.episode("candidate", 1, episode_id=name, revision=2, cutoff_at=cutoff)
    stage.now += 600_000
    for _ in range(4):
        stage.controller.turn()
    state = stage.canaries()[0].state
    assert state is not None
    assert (state.units, float(state.worse.total1)) == (1, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": ("mixed",)},
        {"flags": ("evaluation",)},
        {"withdrawn": True},
        {"canary_id": "cn_other"},
        {"generation": 0},
        {"propensity": 0.0},
    ],
)
def test_what_is_no_evidence_is_left_out(stage: Stage, changes: dict[str, object]) -> None:
    stage.offer(1)
    stage.turn()
    for _ in range(5):
        stage.episode("candidate", 0, **changes)
    stage.settle()
    state = stage.canaries()[0].state
    assert state is not None
    assert (state.units, state.episodes1) == (0, 0)
    with stage.engine.connect() as conn:
        assert all(row.taken is not None for row in conn.execute(select(UNITS)))


def test_the_holdout_is_never_evidence_for_the_canary(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    for _ in range(30):
        stage.episode("holdout", 1)
    stage.settle()
    state = stage.canaries()[0].state
    assert state is not None
    assert (state.units, state.episodes0) == (0, 0)


def test_a_candidate_that_the_engines_refused_fails_at_once(stage: Stage) -> None:
    """The gateway puts its split in force without it: the generation is new, the canary is not named."""
    stage.offer(1)
    stage.turn()
    for _ in range(19):
        stage.episode("champion", 1, canary_id=None)
    stage.settle()
    assert stage.canaries()[0].phase is Phase.PROGRESSING
    stage.episode("champion", 1, canary_id=None)
    stage.settle()
    first = stage.canaries()[0]
    assert (first.phase, first.verdict) == (Phase.FAILED, Verdict.ABORTED)
    assert "its engines refused travel-desk-000001" in first.reason


def test_a_candidate_that_no_engine_runs_fails_and_lets_the_next_begin(stage: Stage) -> None:
    """Its split never takes effect: episodes go on under the old one."""
    old = stage.split
    stage.offer(1)
    stage.turn()
    stage.offer(2, parent=0)
    stage.now += 700_000
    for _ in range(25):
        stage.episode("champion", 1, split=old)
    stage.settle()
    first, second = stage.canaries()
    assert (first.phase, first.verdict) == (Phase.FAILED, Verdict.ABORTED)
    assert "no engine runs" in first.reason
    assert second.phase is Phase.PROGRESSING


def test_late_data_never_reopens_a_verdict(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    pending = [stage.episode("candidate", 1) for _ in range(40)]
    (row,) = stage.canaries()
    stage.steering.abort(row.canary_id, actor="ada")
    before = stage.split
    stage.settle()
    assert pending
    assert stage.split == before
    assert stage.canaries()[0].phase is Phase.ABORTED


def test_poison_becomes_a_dead_letter_and_neighbours_are_read(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.bus.append(EXPERIENCES, "ep_bad", b"not json")
    stage.bus.append(EXPERIENCES, None, None)
    stage.episode("candidate", 1)
    stage.settle()
    assert len(stage.bus.read(DEAD_LETTERS)) == 2
    state = stage.canaries()[0].state
    assert state is not None
    assert state.units == 1


def test_a_poison_record_of_the_largest_size_becomes_a_dead_letter(stage: Stage) -> None:
    stage.bus.append(EXPERIENCES, "ep_bad", b"x" * MAX_VALUE_BYTES)
    stage.episode("champion", 1)
    stage.settle()
    (buried,) = stage.bus.read(DEAD_LETTERS)
    letter = DeadLetter.from_bytes(buried.value)
    assert (letter.topic, letter.offset) == (EXPERIENCES, 0)
    assert "JSON" in letter.reason
    assert len(buried.value) <= MAX_VALUE_BYTES
    with stage.engine.connect() as conn:
        assert len(conn.execute(select(UNITS)).all()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "another-desk-000001"}, "no version name of travel-desk"),
        ({"digest": None}, "names no bytes"),
    ],
)
def test_an_offer_that_names_no_version_of_this_agent_is_refused_and_the_next_is_tried(
    stage: Stage, changes: dict[str, str | None], said: str
) -> None:
    stage.offer(1, **changes)
    good = stage.offer(2)
    stage.turn()
    assert stage.split.candidate is not None
    assert stage.split.candidate.version == good
    assert [said in event["reason"] for event in stage.events()].count(True) == 1


def test_undo_twice_goes_back_twice(stage: Stage) -> None:
    for number in (1, 2):
        stage.offer(number, parent=number - 1)
        stage.turn()
        stage.steering.promote(stage.canaries()[-1].canary_id, actor="ada", full=True)
        stage.settle()
    assert stage.split.champion.version.endswith("2")
    first, last = (row.canary_id for row in stage.canaries())
    with pytest.raises(Illegal, match=f"{first} did not make travel-desk-000002 champion.*by {last}"):
        stage.steering.undo(first, actor="ada")
    stage.steering.undo(last, actor="ada")
    assert stage.split.champion.version.endswith("1")
    assert stage.split.verdicts[-1].version.endswith("2")
    with pytest.raises(Illegal, match=f"{last} did not make travel-desk-000001 champion"):
        stage.steering.undo(last, actor="ada")
    stage.steering.undo(first, actor="ada")
    assert stage.split.champion.version == BASE
    with pytest.raises(Illegal, match="first champion"):
        stage.steering.undo(first, actor="ada")
    assert [event["actor"] for event in stage.events() if event["reason"] == "undone"] == ["ada", "ada"]


def test_undo_ends_the_trial_against_the_fallen_champion(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.steering.promote(stage.canaries()[-1].canary_id, actor="ada", full=True)
    stage.settle()
    stage.offer(2, parent=1)
    stage.turn()
    stage.steering.undo(stage.canaries()[0].canary_id, actor="ada")
    assert stage.canaries()[-1].phase is Phase.ABORTED
    assert (stage.split.champion.version, stage.split.candidate) == (BASE, None)


def test_the_live_line_below_the_anchor_returns_to_it(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.steering.promote(stage.canaries()[-1].canary_id, actor="ada", full=True)
    stage.settle()
    for round_ in range(40):
        for index in range(9):
            stage.episode("champion", int(index < 1), user=f"u{round_}-{index}")
        stage.episode("holdout", 1, user=f"h{round_}")
        stage.settle()
        if stage.split.champion.version == BASE:
            break
    assert stage.split.champion.version == BASE
    assert stage.split.verdicts[-1].verdict is Verdict.ROLLED_BACK
    assert stage.events()[-1]["reason"] == "the live line is worse than the anchor"


def test_one_person_is_one_unit_for_the_anchor(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.steering.promote(stage.canaries()[-1].canary_id, actor="ada", full=True)
    stage.settle()
    for _ in range(60):
        stage.episode("champion", 0, user="one", rater="a program")
        stage.episode("holdout", 1, user="other", rater="a program")
    stage.settle()
    with stage.engine.connect() as conn:
        note = ledger.read_note(conn, "anchor")
    assert (note["worse"]["n0"], note["worse"]["n1"]) == (1, 1)


def test_a_registry_that_is_away_delays_only_the_aliases(stage: Stage) -> None:
    stage.registry.down = True
    version = stage.offer(1)
    stage.turn()
    assert stage.split.share == 0.2
    assert stage.registry.aliases == {}
    stage.registry.down = False
    stage.turn()
    assert stage.registry.aliases["challenger"] == version


def test_aliases_that_somebody_moved_are_put_back(stage: Stage) -> None:
    stage.turn()
    stage.registry.aliases["champion"] = "travel-desk-000099"
    stage.projection.write()
    assert stage.registry.aliases["champion"] == "travel-desk-000099"
    due = Projection(stage.engine, stage.registry, down=Away, repeat_s=0.0)
    for _ in range(2):
        due.write()
    assert stage.registry.aliases["champion"] == BASE


def test_a_database_that_refuses_delays_the_aliases_and_does_not_end_them(
    stage: Stage, tmp_path: Path
) -> None:
    later = open_database("deploy", home=tmp_path / "later")
    projection = Projection(later, stage.registry, down=Away, retry_s=0.01, repeat_s=0.01)
    assert not projection.write()
    projection.start()
    create_tables(later)
    Steering(later, Outbox(later, 10), AGENT, clock=lambda: 1).open()
    assert eventually(lambda: stage.registry.aliases.get("champion") == BASE)
    projection.stop()


def test_a_bus_that_is_away_stops_nothing_and_takes_no_unit(stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    stage.episode("candidate", 1)
    stage.controller.turn()
    stage.bus.down = True
    stage.intake.close()
    stage.now += 60_000
    stage.controller.turn()
    (row,) = stage.canaries()
    stage.steering.abort(row.canary_id, actor="ada")
    assert stage.outbox.depth() == 1
    assert row.state is not None
    assert row.state.units == 0
    stage.bus.down = False
    stage.turn()
    assert stage.published()[-1].candidate is None


def test_a_second_controller_on_the_same_state_is_a_zombie(stage: Stage, tmp_path: Path) -> None:
    stage.turn()
    other = Stage(tmp_path)
    other.bus = stage.bus
    other.restart()
    other.turn()
    stage.offer(1)
    stage.turn()
    with pytest.raises(Zombie):
        other.turn()


def _history(stage: Stage) -> object:
    """What must be the same whatever was killed, without ids that are drawn at random."""
    names = {row.canary_id: row.version for row in stage.canaries()}
    events = [
        (names.get(each["canary_id"] or "", ""), each["from"], each["to"], each["reason"], each["evidence"])
        for each in stage.events()
    ]
    splits = [
        (each.generation, each.champion.version, each.candidate and each.candidate.version, each.share)
        for each in {split.generation: split for split in stage.published()}.values()
    ]
    return events, splits


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The history that nobody interrupted."""
    return _play(_Killable(tmp_path_factory.mktemp("whole"), None))


def _play(stage: "_Killable") -> object:
    stage.offer(1)
    stage.turn()
    stage.traffic(0.4, 0.9, episodes=120)
    stage.offer(2, parent=1)
    stage.settle()
    stage.traffic(0.9, 0.2, episodes=100)
    return _history(stage)


@pytest.mark.parametrize("boundary", ["read", "take_in", "admit", "judge", "commit", "send"])
def test_a_kill_at_any_boundary_changes_nothing(tmp_path: Path, undisturbed: object, boundary: str) -> None:
    """Killed there in every second turn, the same traffic gives the same events, evidence and splits."""
    stage = _Killable(tmp_path, boundary)
    assert _play(stage) == undisturbed
    assert stage.kills > 8


class Killed(BaseException):
    """The process is gone."""


class _Killable(Stage):
    """Dies at a named boundary of every second turn, then starts again from what is stored."""

    def __init__(self, home: Path, boundary: str | None) -> None:
        self.boundary = boundary
        self.turns = self.kills = 0
        super().__init__(home, agent=AGENT)

    def turn(self) -> None:
        self.turns += 1
        if self.boundary is not None and self.turns % 2 == 0:
            self.kills += 1
            try:
                self._until_boundary()
            except Killed:
                self.restart()
        super().turn()

    def _until_boundary(self) -> None:
        batch = self.intake.read()
        if self.boundary == "read":
            raise Killed
        if self.boundary in {"commit", "send"}:
            self.restart()
            self.controller.turn()
            if self.boundary == "send":
                for record in self._spooled():
                    self.bus.append(*record)
            raise Killed
        with self.steering.transaction() as conn:
            self.intake.take_in(conn, batch, steering=self.steering)
            if self.boundary == "take_in":
                raise Killed
            self.steering.admit(conn)
            if self.boundary == "admit":
                raise Killed
            judge_units(conn, self.steering, watermarks=batch.watermarks)
            raise Killed

    def _spooled(self) -> list[tuple[str, str, bytes]]:
        with self.engine.connect() as conn:
            rows = conn.exec_driver_sql("SELECT topic, key, value FROM outbox ORDER BY id").all()
        return [(row[0], row[1], row[2]) for row in rows if row[0] == TRAFFIC_SPLITS]
