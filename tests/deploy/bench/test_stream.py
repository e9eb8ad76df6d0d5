"""What the stream's bench measures: the production worker reads everything, and each rating is timed to its experience."""

import time
from pathlib import Path

import pytest

from deploy.bench.stream import (
    Subject,
    conversations,
    cost_per_record,
    end_to_end_ms,
    fill,
    join_rate,
    send_all,
)
from feedback.agent_file import AgentFile
from feedback.bus import MemoryBus
from feedback.ledger import in_time_order
from feedback.schemas import EXPERIENCES, Experience
from feedback.store import open_database
from tests.stores import Stores

NOW = 1_900_000_000_000


@pytest.fixture
def agent() -> AgentFile:
    return AgentFile.model_validate(
        {"agent": "travel-desk", "model": {"path": "model"}, "system": "", "episode": {"idle": "15s"}}
    )


def test_every_record_is_joined_and_every_rating_timed(agent: AgentFile, tmp_path: Path) -> None:
    bus, stores = MemoryBus(), Stores(tmp_path, None)
    subject = Subject(stores.open(), bus, agent)
    records = conversations(agent, range(4), now=_now())
    send_all(bus, records)
    assert join_rate(subject, records=len(records)) > 0
    joined = [Experience.from_bytes(record.value) for record in bus.read(EXPERIENCES)]
    assert {(each.revision, each.ratings, len(each.turns)) for each in joined} == {(1, 1, 2)}
    delays = end_to_end_ms(subject.worker, bus, agent, episodes=range(3), home=tmp_path)
    assert len(delays) == 3 and min(delays) > 0
    newest = [Experience.from_bytes(record.value) for record in bus.read(EXPERIENCES)][4:]
    assert [(each.revision, each.ratings) for each in newest] == [(2, 2)] * 3
    stores.close()


def test_a_filled_state_holds_what_it_says_and_costs_something(agent: AgentFile, tmp_path: Path) -> None:
    assert cost_per_record(agent, home=tmp_path, ids=40, probe=3) > 0
    engine = open_database("feedback", home=tmp_path)
    with engine.connect() as conn:
        standing = in_time_order(conn, after=None, limit=100)
        rows = conn.exec_driver_sql("SELECT count(*) FROM records").scalar()
    assert len(standing) == 20 + 3
    assert rows == 40 + 3 * 3
    engine.dispose()


def test_filling_grows_with_time_as_ids_do(agent: AgentFile, tmp_path: Path) -> None:
    subject = Subject(open_database("feedback", home=tmp_path), MemoryBus(), agent)
    engine = open_database("feedback", home=tmp_path)
    fill(engine, ids=20, now=NOW)
    with engine.connect() as conn:
        standing = in_time_order(conn, after=None, limit=100)
    names = [each.episode_id for each in standing]
    assert names == sorted(names) and all((each.last_at or 0) < NOW for each in standing)
    assert subject.records == 0
    engine.dispose()


def _now() -> int:
    return time.time_ns() // 1_000_000
