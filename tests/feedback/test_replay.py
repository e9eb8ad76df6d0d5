"""A replay gives the last revision of every episode byte for byte, however the records came, and a worker can go on from it."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from feedback import sent
from feedback.bus import BusError, MemoryBus
from feedback.replay import NotFresh, Replayed, replay
from feedback.schemas import EXPERIENCES, FEEDBACK, INTERACTIONS, Experience, Message
from tests.feedback.building import SECOND, correction, episode_end, interaction, rating, withdrawal
from tests.feedback.test_worker import AGENT_FILE, CLOSED, Life, tell
from tests.stores import Stores

FAR = 1_000 * CLOSED


@pytest.fixture
def life(stores: Stores) -> Life:
    return Life(stores.open("live"))


@pytest.fixture
def fresh(stores: Stores) -> Engine:
    return stores.open("fresh")


def again(engine: Engine, bus: MemoryBus, *, now: int = FAR, since: int | None = None) -> Replayed:
    return replay(engine, bus, agent=AGENT_FILE, now=now, since=since)


def last_sent(bus: MemoryBus) -> dict[str, bytes]:
    newest: dict[str, tuple[int, bytes]] = {}
    for record in bus.read(EXPERIENCES):
        each = Experience.from_bytes(record.value)
        newest[each.episode_id] = max(
            newest.get(each.episode_id, (0, b"")), (each.revision, record.value or b"")
        )
    return {name: value for name, (_, value) in newest.items()}


def rebuilt(engine: Engine) -> dict[str, bytes]:
    with engine.connect() as conn:
        return sent.rebuilt(conn)


def test_the_story_comes_out_byte_for_byte(life: Life, fresh: Engine) -> None:
    tell(life)
    found = again(fresh, life.bus)
    assert (found.episodes, found.same, found.is_faithful) == (3, 3, True)
    assert rebuilt(fresh) == last_sent(life.bus)


def without_experiences(bus: MemoryBus) -> MemoryBus:
    copy = MemoryBus()
    for topic in (INTERACTIONS, FEEDBACK):
        for record in bus.read(topic):
            copy.append(topic, record.key, record.value, timestamp_ms=record.timestamp_ms)
    return copy


def test_records_that_came_in_time_need_no_experiences(life: Life, fresh: Engine) -> None:
    """Revisions are counted, and trust in words measured, in record time: nothing of it is taken from what was sent."""
    for number, good in enumerate((True, True, False, True)):
        name, start = f"ep_{number}", number * CLOSED
        life.send(interaction(0, episode=name), start + 1_000)
        life.send(interaction(1, episode=name, user_text="Thanks!"), start + 2_000)
        life.send(rating(good, episode_id=name, response=f"{name}-r0", id=f"fb_{number}"), start + 60_000)
        life.settle(start + 59_000)
        life.settle(start + 60_000)
    found = again(fresh, without_experiences(life.bus))
    assert (found.unsent, found.same) == (4, 0)
    assert rebuilt(fresh) == last_sent(life.bus)
    assert {Experience.from_bytes(value).revision for value in rebuilt(fresh).values()} == {2}


Step = tuple[Message, int, int]
"""A message, its record time, and how long after that it arrives."""

WORDS = st.sampled_from(["Thanks!", "The total is wrong.", "And a hotel?"])
TIMES = st.integers(0, 40).map(lambda step: step * 2_500)
LATE = st.sampled_from([0, 0, 0, 1_000, 20_000, 2 * CLOSED])


@st.composite
def records(draw: st.DrawFn) -> list[Step]:
    """What happened in up to three episodes, each record late by its own delay, some of them twice."""
    steps: list[Step] = []
    for name in ("ep_a", "ep_b", "ep_c")[: draw(st.integers(1, 3))]:
        kept: list[tuple[Message, int]] = []
        for index in range(draw(st.integers(1, 3))):
            kept.append((interaction(index, episode=name, user_text=draw(WORDS)), draw(TIMES)))
        for number in range(draw(st.integers(0, 3))):
            thumb = rating(
                draw(st.booleans()),
                episode_id=name,
                response=draw(st.sampled_from([None, f"{name}-r0", f"{name}-r1"])),
                id=f"fb_{name}_{number % 2}",
                revision=number + 1,
                op=draw(st.sampled_from(["create", "update", "delete"])),
                received_at=number,
            )
            kept.append((thumb, draw(TIMES)))
        if draw(st.integers(0, 3)) == 0:
            at = draw(TIMES)
            kept.append((episode_end(at, episode=name), at))
        if draw(st.integers(0, 5)) == 0:
            at = draw(TIMES)
            kept.append((withdrawal(at, episode=name), at))
        for message, at in kept:
            steps.append((message, at, draw(LATE)))
            if draw(st.integers(0, 3)) == 0:
                steps.append((message, at + draw(st.sampled_from([0, 7_000])), draw(LATE)))
    return draw(st.permutations(steps))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=records(), restarts=st.sets(st.integers(0, 30)), shuffled=st.booleans())
def test_late_doubled_and_shuffled_records_replay_to_the_same_bytes(
    steps: list[Step], restarts: set[int], shuffled: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = Stores(Path(folder), None)
        life, fresh = Life(stores.open("live")), stores.open("fresh")
        arriving = steps if shuffled else sorted(steps, key=lambda step: step[1] + step[2])
        clock = 0
        for number, (message, at, late) in enumerate(arriving):
            clock = max(clock, at + late)
            life.send(message, at)
            life.now = clock
            life.worker.step()
            if number in restarts:
                life.restart()
        life.settle(FAR)
        found = again(fresh, life.bus)
        assert rebuilt(fresh) == last_sent(life.bus)
        assert (found.different, found.unsent, found.missing) == (0, 0, 0)
        stores.close()


def test_a_worker_goes_on_from_a_replay_and_sends_nothing_twice(life: Life, fresh: Engine) -> None:
    tell(life)
    before = len(life.bus.read(EXPERIENCES))
    again(fresh, life.bus)
    life.engine = fresh
    life.restart()
    life.settle(FAR)
    assert len(life.bus.read(EXPERIENCES)) == before
    life.send(
        rating(True, episode_id="ep_b", response="ep_b-r1", id="fb_late", received_at=9), CLOSED + 9_000
    )
    life.settle(FAR)
    newest = Experience.from_bytes(last_sent(life.bus)["ep_b"])
    assert (len(life.bus.read(EXPERIENCES)), newest.revision) == (before + 1, 3)


def test_what_was_never_sent_is_sent_by_the_worker_that_goes_on(life: Life, fresh: Engine) -> None:
    life.send(interaction(0), 1_000)
    again(fresh, life.bus)
    expected = rebuilt(fresh)
    life.engine = fresh
    life.restart()
    life.settle(FAR)
    assert last_sent(life.bus) == expected != {}


def test_another_price_is_a_difference_and_a_newer_revision(life: Life, fresh: Engine) -> None:
    life.send(interaction(0), 1_000)
    life.send(rating(True), 2_000)
    life.settle(CLOSED)
    dearer = AGENT_FILE.model_copy(
        update={"rewards": AGENT_FILE.rewards.model_copy(update={"rating_trust": 0.5})}
    )
    found = replay(fresh, life.bus, agent=dearer, now=FAR)
    assert (found.different, found.named, found.is_faithful) == (1, ["ep_1"], False)
    assert Experience.from_bytes(rebuilt(fresh)["ep_1"]).revision == 2


def test_an_episode_that_cannot_be_read_any_more_is_missing(stores: Stores, fresh: Engine) -> None:
    life = Life(stores.open("live"), MemoryBus(partitions=1))
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    life.bus.expire(INTERACTIONS, 0, before=1)
    found = again(fresh, life.bus)
    assert (found.episodes, found.missing, found.named, found.is_faithful) == (0, 1, ["ep_1"], False)


def test_what_was_withdrawn_stays_a_tombstone_and_its_words_are_not_kept(life: Life, fresh: Engine) -> None:
    life.send(interaction(0, user_text="my secret"), 1_000)
    life.send(withdrawal(2_000), 2_000)
    life.settle(CLOSED)
    found = again(fresh, life.bus)
    assert (found.same, Experience.from_bytes(rebuilt(fresh)["ep_1"]).withdrawn) == (1, True)
    with fresh.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM records").scalar() == 0


def test_from_a_time_only_whole_episodes_are_rebuilt(stores: Stores, fresh: Engine) -> None:
    life = Life(stores.open("live"), MemoryBus(partitions=1))
    life.send(interaction(0, episode="ep_old"), 1_000)
    life.send(interaction(0, episode="ep_half"), 2_000)
    life.send(rating(True, episode_id="ep_new", response="ep_new-r0"), 4_500)
    life.send(interaction(1, episode="ep_half"), 5_000)
    life.send(interaction(0, episode="ep_new", started_at=5 * SECOND, ended_at=6 * SECOND), 6_000)
    life.settle(FAR)
    found = again(fresh, life.bus, since=5_000)
    assert (found.episodes, found.same, found.partial, found.missing) == (1, 1, 1, 0)
    assert rebuilt(fresh) == {"ep_new": last_sent(life.bus)["ep_new"]}


def test_a_demonstration_is_read_from_a_day_before_its_reply(stores: Stores, fresh: Engine) -> None:
    hour = 3_600_000
    life = Life(stores.open("live"), MemoryBus(partitions=1))
    life.send(correction("Total 140.", id="fb_early"), hour)
    life.send(interaction(0, started_at=21 * hour, ended_at=21 * hour), 21 * hour)
    life.settle(FAR)
    assert len(Experience.from_bytes(last_sent(life.bus)["ep_1"]).corrections) == 1
    found = again(fresh, life.bus, since=20 * hour)
    assert (found.same, found.different) == (1, 0)


def test_an_episode_that_is_open_again_keeps_what_was_sent(life: Life, fresh: Engine) -> None:
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    life.send(interaction(1), CLOSED)
    life.settle(CLOSED + 1)
    found = again(fresh, life.bus, now=CLOSED + 1)
    assert (found.open, found.missing) == (1, 0)
    assert rebuilt(fresh) == last_sent(life.bus)


def test_a_database_that_is_used_already_is_refused(life: Life) -> None:
    life.send(interaction(0), 1_000)
    life.settle(CLOSED)
    with pytest.raises(NotFresh, match="empty"):
        again(life.engine, life.bus)


def test_a_silent_bus_is_an_error_and_not_an_empty_result(life: Life, fresh: Engine) -> None:
    silent: Callable[[], Replayed] = lambda: replay(  # noqa: E731
        fresh, SilentBus(), agent=AGENT_FILE, now=FAR, silence_s=0.05
    )
    with pytest.raises(BusError, match="nothing was heard"):
        silent()


class SilentBus(MemoryBus):
    """A broker that is away: its readers know of no end."""

    def ends(self, topics: object) -> dict[tuple[str, int], int]:
        return {}
