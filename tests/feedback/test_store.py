"""Positions survive, move once, and cannot be moved by a process that was presumed dead."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from feedback.ledger import create_ledger
from feedback.outbox import Outbox
from feedback.schemas import FEEDBACK, INTERACTIONS
from feedback.store import Zombie, advance, open_database, read_positions, reading
from tests.stores import Stores


def test_positions_survive_reopening(stores: Stores) -> None:
    engine = stores.open()
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5), (INTERACTIONS, 1): (None, 7)})
        advance(conn, "join", {(FEEDBACK, 0): (5, 9)})
    engine.dispose()
    with stores.open().connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 9, (INTERACTIONS, 1): 7}
        assert read_positions(conn, "other") == {}


@pytest.mark.parametrize("old", [None, 4, 6])
def test_a_position_moves_only_from_where_it_is(stores: Stores, old: int | None) -> None:
    engine = stores.open()
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5)})
    with pytest.raises(Zombie), engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (old, 8)})
    with engine.connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 5}


def test_a_position_that_was_never_stored_cannot_be_moved(stores: Stores) -> None:
    engine = stores.open()
    with pytest.raises(Zombie), engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (0, 8)})


def test_a_zombie_takes_its_whole_transaction_with_it(stores: Stores) -> None:
    engine = stores.open()
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5)})
    with pytest.raises(Zombie), engine.begin() as conn:
        advance(conn, "join", {(INTERACTIONS, 0): (None, 1), (FEEDBACK, 0): (4, 8)})
    with engine.connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 5}


def test_sqlite_is_set_up_to_survive_a_kill(tmp_path: Path) -> None:
    engine = open_database("serving", home=tmp_path)
    with engine.connect() as conn:
        pragmas = {
            name: conn.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 5000}


def test_reading_goes_on_while_a_writer_holds_the_lock(stores: Stores) -> None:
    engine = stores.open(role="serving")
    with engine.begin() as writer:
        advance(writer, "join", {(FEEDBACK, 0): (None, 5)})
        with reading(engine).connect() as conn:
            assert read_positions(conn, "join") == {}


def test_the_slower_of_two_that_move_at_once_is_the_zombie(stores: Stores) -> None:
    """Neither sees what the other has not committed; the second waits, looks again and stops."""
    engine, other = stores.open(), stores.open()
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5)})
    failed: list[type[BaseException]] = []

    def move() -> None:
        try:
            with other.begin() as conn:
                advance(conn, "join", {(FEEDBACK, 0): (5, 7)})
        except Zombie as error:
            failed.append(type(error))

    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (5, 8)})
        second = threading.Thread(target=move)
        second.start()
    second.join(30)
    assert failed == [Zombie]
    with engine.connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 8}


def test_processes_that_start_at_once_make_the_tables_once(stores: Stores) -> None:
    url = stores.url()

    def start(_: int) -> int:
        engine = stores.open()
        create_ledger(engine)
        Outbox(engine, 10)
        with engine.connect() as conn:
            return len(read_positions(conn, "join"))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))) == [0] * 6
    assert stores.url() == url


def test_roles_share_a_database_and_not_their_tables(stores: Stores) -> None:
    feedback, serving = stores.open(), stores.open(role="serving")
    with feedback.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5)})
    with serving.connect() as conn:
        assert read_positions(conn, "join") == {}


@pytest.mark.parametrize("role", ["", "Feedback", "a-b", "x; drop table y"])
def test_a_role_is_a_plain_name(tmp_path: Path, role: str) -> None:
    with pytest.raises(ValueError, match="role name"):
        open_database(role, home=tmp_path)
