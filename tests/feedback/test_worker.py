"""The worker on real databases: order, repeats, poison, outages and a kill at any line change nothing that comes out."""

import random
from collections.abc import Sequence

import pytest
from sqlalchemy import Engine, event

from feedback.agent_file import AgentFile, AgentFileError
from feedback.bus import MemoryBus, MemoryReader, Partition, Record
from feedback.monitor import Monitor
from feedback.outbox import Outbox, Outgoing
from feedback.schemas import (
    DEAD_LETTERS,
    EXPERIENCES,
    FEEDBACK,
    INTERACTIONS,
    DeadLetter,
    Experience,
    Feedback,
    Message,
)
from feedback.store import Zombie
from feedback.worker import Worker
from tests.feedback.building import AGENT, IDLE_MS, episode_end, interaction, rating, withdrawal
from tests.stores import Stores

AGENT_FILE = AgentFile.model_validate(
    {
        "agent": AGENT,
        "model": {"path": "model"},
        "system": "",
        "episode": {"idle": "15s", "grace": "10s"},
        "metrics": {"user_rating": {"window": "1h"}},
        "rewards": {"implicit": {"start": 0.8, "pairs": 3}},
    }
)
CLOSED = 10 * 60_000


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing may catch it."""


class Fuse:
    """Lets `spare` effects through, then kills once."""

    def __init__(self, spare: int | None = None) -> None:
        self.spare = spare
        self.burnt = 0

    def burn(self) -> None:
        self.burnt += 1
        if self.spare is not None and self.burnt > self.spare:
            self.spare = None
            raise Killed


class FusedBus(MemoryBus):
    """A bus around whose every effect the process may die."""

    fuse = Fuse()

    def send(self, topic: str, key: str, value: bytes, *, timestamp_ms: int | None = None) -> None:
        self.fuse.burn()
        super().send(topic, key, value, timestamp_ms=timestamp_ms)

    def flush(self, timeout_s: float) -> None:
        self.fuse.burn()
        super().flush(timeout_s)
        self.fuse.burn()


class Life:
    """A worker's bus, database and clock, which outlive the worker."""

    def __init__(self, engine: Engine, bus: MemoryBus | None = None, *, bound: int = 1_000) -> None:
        self.bound = bound
        self.bus = bus if bus is not None else MemoryBus()
        self.engine = engine
        self.now = 0
        self.monitor = Monitor()
        self.worker = self.born()

    def born(self, retention_ms: int = 14 * 86_400_000) -> Worker:
        return Worker(
            self.engine,
            self.bus,
            agent=AGENT_FILE,
            outbox=Outbox(self.engine, self.bound),
            monitor=self.monitor,
            clock=lambda: self.now,
            retention_ms=retention_ms,
        )

    def restart(self) -> None:
        self.worker = self.born()

    def send(self, message: Message, at: int) -> None:
        topic = FEEDBACK if isinstance(message, Feedback) else INTERACTIONS
        key = message.episode_id  # type: ignore[attr-defined]
        self.bus.append(topic, key, message.to_bytes(), timestamp_ms=at)

    def settle(self, now: int | None = None) -> None:
        """Step until nothing is read any more, at this time."""
        if now is not None:
            self.now = now
        while self.worker.step():
            pass
        self.worker.step()

    def experiences(self) -> list[Experience]:
        return [Experience.from_bytes(record.value) for record in self.bus.read(EXPERIENCES)]

    def last(self) -> dict[str, Experience]:
        newest: dict[str, Experience] = {}
        for each in self.experiences():
            if each.episode_id not in newest or each.revision > newest[each.episode_id].revision:
                newest[each.episode_id] = each
        return newest


@pytest.fixture
def life(stores: Stores) -> Life:
    return Life(stores.open())


def test_an_episode_becomes_one_experience_when_it_was_silent_long_enough(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.send(rating(True), 2_000)
    life.settle(1_000 + IDLE_MS - 1)
    assert life.experiences() == []
    life.settle(1_000 + IDLE_MS)
    [experience] = life.experiences()
    assert (experience.revision, experience.outcome, experience.closed_at) == (1, 1, 1_000 + IDLE_MS)
    life.settle(CLOSED)
    assert len(life.experiences()) == 1


def test_an_end_is_joined_at_once_and_the_record_carries_its_key(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.send(episode_end(1_500), 1_500)
    life.settle(1_500)
    [record] = life.bus.read(EXPERIENCES)
    assert (record.key, Experience.from_bytes(record.value).closed_at) == ("ep_1", 1_500)


def test_a_late_rating_is_a_new_revision_at_once_and_a_repeat_is_none(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    for _ in range(3):
        life.send(rating(False), CLOSED)
        life.settle()
    assert [(each.revision, each.outcome) for each in life.experiences()] == [(1, None), (2, 0)]


def test_a_changed_rating_replaces_the_old_sign(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.send(rating(True), 2_000)
    life.settle(CLOSED)
    life.send(rating(False, revision=2, op="update", received_at=9), CLOSED)
    life.settle()
    assert [(each.outcome, each.ratings) for each in life.experiences()] == [(1, 1), (0, 1)]


def test_a_rating_before_its_episode_waits_and_is_counted(life: Life) -> None:
    life.send(rating(True), 500)
    life.settle(1_000)
    assert life.monitor.registry.get_sample_value("ratchet_episodes_unmatched") == 1
    life.restart()
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    [experience] = life.experiences()
    assert experience.outcome == 1


@pytest.mark.parametrize("late_by", [-30 * 60_000, 30 * 60_000], ids=["early", "late"])
@pytest.mark.parametrize("partitions", [3, 4])
def test_36_a_partition_added_between_episode_and_rating_changes_no_join(
    stores: Stores, partitions: int, late_by: int
) -> None:
    life, replied = Life(stores.open(), MemoryBus(partitions=partitions)), 60 * 60_000
    steps: list[tuple[Message, int]] = [
        (interaction(number, episode=episode), replied)
        for number in range(2)
        for episode in ("ep_a", "ep_b", "ep_c")
    ]
    thumbs: list[tuple[Message, int]] = [
        (rating(True, episode_id=episode, response=f"{episode}-r1", id=f"fb_{episode}"), replied + late_by)
        for episode in ("ep_a", "ep_b", "ep_c")
    ]
    for part in (thumbs, steps) if late_by < 0 else (steps, thumbs):
        for message, at in part:
            life.send(message, at)
        life.settle(max(at for _, at in part))
        life.bus.add_partition()
    life.settle(3 * 60 * 60_000)
    assert {name: (each.outcome, each.ratings) for name, each in life.last().items()} == dict.fromkeys(
        ("ep_a", "ep_b", "ep_c"), (1, 1)
    )
    assert rows(life, "episodes") == 3


def test_31_what_was_said_before_the_first_start_is_joined(stores: Stores) -> None:
    bus = MemoryBus()
    for message, topic in ((interaction(0), INTERACTIONS), (rating(True), FEEDBACK)):
        bus.append(topic, "ep_1", message.to_bytes(), timestamp_ms=1_000)
    life = Life(stores.open(), bus)
    life.settle(CLOSED)
    assert [each.outcome for each in life.experiences()] == [1]


def test_a_late_reply_reopens_the_episode(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    life.send(interaction(1), CLOSED + 1_000)
    life.settle(CLOSED + 2_000)
    assert len(life.experiences()) == 1
    life.settle(CLOSED + 1_000 + IDLE_MS)
    assert [(each.revision, len(each.turns)) for each in life.experiences()] == [(1, 1), (2, 2)]


def test_a_reply_held_up_elsewhere_still_makes_a_newer_revision(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    life.send(interaction(1), 2_000)
    life.settle(CLOSED)
    assert [(each.revision, len(each.turns)) for each in life.experiences()] == [(1, 1), (2, 2)]


def test_a_withdrawal_is_a_tombstone_and_forgets_the_words(life: Life) -> None:
    life.send(interaction(0, user_text="my secret"), 1_000)
    life.settle(CLOSED)
    life.send(withdrawal(CLOSED), CLOSED)
    life.settle()
    life.send(rating(True), CLOSED + 1)
    life.send(interaction(0, user_text="my secret"), 1_000)
    life.settle(CLOSED + 60_000)
    assert [(each.revision, each.withdrawn, each.turns) for each in life.experiences()][1:] == [(2, True, ())]
    with life.engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM records").scalar() == 0


def test_silence_is_not_concluded_from_records_that_were_not_read_yet(stores: Stores) -> None:
    life = Life(stores.open(), MemoryBus(partitions=1))
    life.send(interaction(0), 1_000)
    for number in range(600):  # more than one batch
        life.send(interaction(0, episode=f"ep_other{number}"), 1_500)
    life.send(interaction(1), 2_000)
    life.now = CLOSED
    life.worker.step()
    assert life.experiences() == []
    life.settle()
    assert len(life.last()["ep_1"].turns) == 2
    assert life.last()["ep_1"].revision == 1


def test_a_bus_that_is_down_keeps_experiences_in_the_outbox(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.settle(2_000)
    life.bus.down = True
    life.settle(CLOSED)
    assert life.experiences() == []
    life.bus.down = False
    life.restart()
    life.settle()
    assert len(life.experiences()) == 1


class LastHeard(MemoryReader):
    """Knows the ends that came with its last answer, as Kafka's client does."""

    heard: dict[Partition, int] = {}

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        records = super().poll(timeout_s, max_records)
        self.heard = super().lag()
        return records

    def lag(self) -> dict[Partition, int]:
        return self.heard

    def close(self) -> None:
        self.heard = {}


class LastHeardBus(MemoryBus):
    def reader(self, topics: Sequence[str]) -> MemoryReader:
        return LastHeard(self, topics)


def test_a_worker_that_does_not_read_concludes_no_silence_and_fills_no_outbox(stores: Stores) -> None:
    life = Life(stores.open(), LastHeardBus(), bound=40)
    for number in range(30):
        life.send(interaction(0, episode=f"ep_{number}"), 1_000)
    life.settle(2_000)
    life.bus.down = True
    spool = Outbox(life.engine, 40)
    with life.engine.begin() as conn:
        spool.put_all(conn, [Outgoing(DEAD_LETTERS, "k", b"{}", 1)] * 21)
    life.settle(3_000)
    for number in range(30):
        life.send(interaction(1, episode=f"ep_{number}"), 3_000)
    for _ in range(3):
        life.settle(CLOSED)
    assert spool.depth() == 21
    life.bus.down = False
    life.settle(CLOSED)
    life.settle(CLOSED)
    assert [(each.revision, len(each.turns)) for each in life.experiences()] == [(1, 2)] * 30


POISON: list[bytes | None] = [
    None,
    b"",
    b"{",
    b"\xff\xfe\x00",
    b'{"kind": "interaction"}',
    interaction(0).to_bytes().replace(b'"schema_version":1', b'"schema_version":99'),
    b'"' + b"x" * 2_000_000 + b'"',
    interaction(0).to_bytes().replace(b'"latency_ms":100.0', b'"latency_ms":NaN'),
    b"[" * 100_000,
    b'{"kind": "nothing"}',
    interaction(0, episode="ep_1\0").to_bytes(),
    interaction(0, response_id="r\0").to_bytes(),
    rating(True, id="fb\0").to_bytes(),
]


@pytest.mark.parametrize("value", POISON, ids=range(len(POISON)))
def test_a_poison_record_is_a_dead_letter_and_its_neighbours_are_processed(
    life: Life, value: bytes | None
) -> None:
    life.send(interaction(0), 1_000)
    for topic in (INTERACTIONS, FEEDBACK):
        life.bus.append(topic, "ep_1", value, timestamp_ms=1_100)
    life.send(interaction(1), 2_000)
    life.send(rating(True), 2_500)
    life.settle(CLOSED)
    [experience] = life.experiences()
    assert (len(experience.turns), experience.outcome) == (2, 1)
    letters = [DeadLetter.from_bytes(record.value) for record in life.bus.read(DEAD_LETTERS)]
    assert {letter.topic for letter in letters} == {INTERACTIONS, FEEDBACK}
    assert all(letter.reason and letter.offset >= 0 for letter in letters)
    sample = life.monitor.registry.get_sample_value("ratchet_dead_letters_total", {"topic": FEEDBACK})
    assert sample == 1
    life.restart()
    life.settle()
    assert len(life.bus.read(DEAD_LETTERS)) == 2


def test_a_nul_in_what_is_said_and_in_a_key_stops_nobody(life: Life) -> None:
    life.bus.append(INTERACTIONS, "k\0", b"{", timestamp_ms=1_000)
    life.send(interaction(0), 1_000)
    life.send(interaction(1, user_text="Thanks!\0"), 2_000)
    life.send(rating(True), 3_000)
    life.settle(CLOSED)
    [experience] = life.experiences()
    assert experience.user_texts[1] == "Thanks!\0"
    assert len(life.bus.read(DEAD_LETTERS)) == 1


def test_a_record_without_a_time_is_as_old_as_can_be(life: Life) -> None:
    life.send(interaction(0), -1)
    life.send(episode_end(0), -1)
    life.settle(CLOSED)
    [experience] = life.experiences()
    assert experience.closed_at == 0


def test_an_episode_that_has_no_price_is_set_aside_and_its_neighbours_are_priced(life: Life) -> None:
    """Each record can be read; the mean of their latencies is not a number."""
    for number in range(2):
        life.send(interaction(number, latency_ms=1.7e308), 1_000)
    life.send(interaction(0, episode="ep_2"), 1_000)
    life.settle(CLOSED)
    assert [each.episode_id for each in life.experiences()] == ["ep_2"]
    [letter] = [DeadLetter.from_bytes(record.value) for record in life.bus.read(DEAD_LETTERS)]
    assert letter.reason.startswith("ep_1: ")
    life.restart()
    life.settle(2 * CLOSED)
    assert len(life.bus.read(DEAD_LETTERS)) == 1


def test_another_agents_records_are_left_alone(life: Life) -> None:
    life.send(interaction(0, agent="somebody-else"), 1_000)
    life.settle(CLOSED)
    assert life.experiences() == []


def test_records_removed_by_retention_are_counted_as_lost(stores: Stores) -> None:
    life = Life(stores.open(), MemoryBus(partitions=1))
    life.send(interaction(0), 1_000)
    life.settle(1_000)
    for number in range(1, 4):
        life.send(interaction(number), 1_000 * number)
    life.bus.expire(INTERACTIONS, 0, before=3)
    life.settle(2_000)
    lost = life.monitor.registry.get_sample_value("ratchet_bus_lost_records_total", {"topic": INTERACTIONS})
    assert lost == 2


def test_a_second_worker_on_the_same_state_stops_itself(life: Life) -> None:
    zombie = life.born()
    life.send(interaction(0), 1_000)
    life.settle(1_000)
    with pytest.raises(Zombie):
        zombie.step()
    life.settle(CLOSED)
    assert len(life.experiences()) == 1


def test_trust_in_words_is_measured_once_there_are_enough_pairs(life: Life) -> None:
    for number, good in enumerate((True, True, True, False)):
        episode = f"ep_{number}"
        life.send(interaction(0, episode=episode), 1_000 + number)
        life.send(interaction(1, episode=episode, user_text="Thanks!"), 2_000 + number)
        life.send(
            rating(good, episode_id=episode, response=f"{episode}-r0", id=f"fb_{number}"), 3_000 + number
        )
    life.settle(CLOSED)
    life.restart()
    life.send(interaction(0, episode="ep_x"), CLOSED)
    life.send(interaction(1, episode="ep_x", user_text="The total is wrong."), CLOSED + 1_000)
    life.settle(2 * CLOSED)
    experience = life.last()["ep_x"]
    assert experience.outcome == 0
    assert experience.outcome_reward == pytest.approx(-(2 * 3 / 4 - 1))


def test_what_no_rating_can_reach_any_more_is_forgotten_and_nothing_else(life: Life) -> None:
    fortnight = 14 * 86_400_000
    life.send(interaction(0, episode="ep_old"), 1_000)
    life.settle(CLOSED)
    life.send(interaction(0, episode="ep_new"), fortnight)
    life.settle(fortnight + 10_000)
    life.settle(fortnight + CLOSED)
    with life.engine.connect() as conn:
        for table in ("records", "episodes"):
            kept = conn.exec_driver_sql(f"SELECT episode_id FROM {table}").scalars().all()
            assert kept == ["ep_new"]
    assert len(life.experiences()) == 2


def rows(life: Life, table: str) -> int:
    with life.engine.connect() as conn:
        return int(conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)


def thanked(life: Life, episode: str, at: int) -> None:
    """An episode whose first answer got words and a thumb."""
    life.send(interaction(0, episode=episode), at)
    life.send(interaction(1, episode=episode, user_text="Thanks!"), at + 1)
    thumb = rating(True, episode_id=episode, response=f"{episode}-r0", id=f"fb_{episode}")
    life.send(thumb, at + 2)


def test_words_of_a_withdrawn_episode_leave_the_judge_at_once(life: Life) -> None:
    for episode in ("ep_a", "ep_b"):
        thanked(life, episode, 1_000)
    life.settle(CLOSED)
    life.send(withdrawal(CLOSED, episode="ep_a"), CLOSED)
    life.settle()
    known = life.monitor.registry.get_sample_value("ratchet_implicit_pairs")
    assert (rows(life, "pairs"), known) == (1, 1)


def test_words_go_with_their_episode_and_feedback_without_one_is_forgotten_as_well(life: Life) -> None:
    fortnight = 14 * 86_400_000
    thanked(life, "ep_old", 1_000)
    life.send(rating(True, episode_id="ep_never", response="ep_never-r0", id="fb_never"), 1_000)
    life.settle(CLOSED)
    assert (rows(life, "pairs"), rows(life, "records")) == (1, 4)
    thanked(life, "ep_new", fortnight)
    life.send(rating(True, episode_id="ep_soon", response="ep_soon-r0", id="fb_soon"), fortnight)
    life.settle(fortnight + 10_000)
    life.settle(fortnight + CLOSED)
    with life.engine.connect() as conn:
        kept = conn.exec_driver_sql("SELECT DISTINCT episode_id FROM records ORDER BY 1").scalars().all()
        said = conn.exec_driver_sql("SELECT response_id FROM pairs").scalars().all()
    assert (kept, said, rows(life, "episodes")) == (["ep_new", "ep_soon"], ["ep_new-r0"], 2)


@pytest.mark.parametrize(("retention_ms", "window"), [(3_600_000, 86_400), (86_400_000, 86_400)])
def test_a_retention_not_longer_than_every_window_is_refused(
    life: Life, retention_ms: int, window: int
) -> None:
    """A demonstration counts for a day, whatever the agent file declares."""
    with pytest.raises(AgentFileError, match=f"window of {window} s"):
        life.born(retention_ms=retention_ms)


Step = tuple[int, list[tuple[Message, int]]]

STORY: list[Step] = [
    (
        2_500,
        [
            (rating(True, episode_id="ep_b", response="ep_b-r0", id="fb_b"), 900),
            (interaction(0, episode="ep_a"), 1_000),
            (interaction(0, episode="ep_b"), 1_200),
            (interaction(1, episode="ep_a", user_text="Thanks!"), 2_000),
            (interaction(0, episode="ep_a"), 1_000),
        ],
    ),
    (CLOSED, []),
    (CLOSED, [(rating(False, episode_id="ep_a", response="ep_a-r0", id="fb_a"), CLOSED)]),
    (
        2 * CLOSED,
        [
            (
                rating(
                    True,
                    episode_id="ep_a",
                    response="ep_a-r0",
                    id="fb_a",
                    revision=2,
                    op="update",
                    received_at=5,
                ),
                CLOSED + 1,
            ),
            (interaction(1, episode="ep_b"), CLOSED + 2),
            (withdrawal(CLOSED + 3, episode="ep_c"), CLOSED + 3),
            (interaction(0, episode="ep_c"), CLOSED + 4),
        ],
    ),
    (3 * CLOSED, []),
]


def tell(life: Life) -> None:
    """Play the story, with a new worker after every kill."""
    for now, messages in STORY:
        for message, at in messages:
            life.send(message, at)
        while True:
            try:
                life.settle(now)
                break
            except Killed:
                life.restart()


def outgoing(life: Life) -> set[bytes]:
    return {record.value or b"" for record in life.bus.read(EXPERIENCES)}


def fused(engine: Engine, fuse: Fuse) -> Life:
    """A life in which every statement that writes, every commit, send and flush burns the fuse."""
    bus = FusedBus()
    life = Life(engine, bus)
    bus.fuse = fuse

    def write(_conn: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.split(maxsplit=1)[0] in {"INSERT", "UPDATE", "DELETE"}:
            fuse.burn()

    def commit(_conn: object) -> None:
        fuse.burn()

    event.listen(life.engine, "before_cursor_execute", write)
    event.listen(life.engine, "commit", commit)
    return life


def count_effects(engine: Engine) -> tuple[int, set[bytes]]:
    fuse = Fuse()
    life = fused(engine, fuse)
    tell(life)
    return fuse.burnt, outgoing(life)


def test_a_kill_before_any_effect_loses_and_doubles_nothing(stores: Stores) -> None:
    effects, undisturbed = count_effects(stores.open("undisturbed"))
    # ep_a: close, thumb, changed thumb; ep_b: close, second close; ep_c: tombstone
    assert len(undisturbed) == 6
    for spare in range(effects):
        life = fused(stores.open(f"killed{spare}"), Fuse(spare))
        tell(life)
        assert outgoing(life) == undisturbed, f"killed after {spare} effects"
        revisions = [
            (each.episode_id, each.revision) for each in {e.id: e for e in life.experiences()}.values()
        ]
        assert len(revisions) == len(set(revisions))
        life.engine.dispose()


@pytest.mark.parametrize("seed", range(12))
def test_order_repeats_and_restarts_change_no_last_revision(stores: Stores, seed: int) -> None:
    """All of the story's records at once, shuffled across keys and topics, twice some of them."""
    plain = Life(stores.open("plain"))
    tell(plain)
    draw = random.Random(seed)
    records = [record for _, messages in STORY for record in messages]
    records += draw.sample(records, 4)
    draw.shuffle(records)
    mixed = Life(stores.open("mixed"), MemoryBus(partitions=draw.choice([1, 3])))
    for message, at in records:
        mixed.send(message, at)
        if draw.random() < 0.3:
            mixed.settle(at)
        if draw.random() < 0.3:
            mixed.restart()
    mixed.settle(3 * CLOSED)
    without_revision = [
        {episode: each.model_copy(update={"revision": 0}) for episode, each in life.last().items()}
        for life in (plain, mixed)
    ]
    assert without_revision[0] == without_revision[1]
