"""Positions survive, move once, and cannot be moved by a process that was presumed dead."""

from pathlib import Path

import pytest
from sqlalchemy import text

from feedback.schemas import FEEDBACK, INTERACTIONS
from feedback.store import Zombie, advance, open_database, read_positions, reading


def test_positions_survive_reopening(tmp_path: Path) -> None:
    engine = open_database("feedback", home=tmp_path)
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5), (INTERACTIONS, 1): (None, 7)})
        advance(conn, "join", {(FEEDBACK, 0): (5, 9)})
    engine.dispose()
    with open_database("feedback", home=tmp_path).connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 9, (INTERACTIONS, 1): 7}
        assert read_positions(conn, "other") == {}


@pytest.mark.parametrize("old", [None, 4, 6])
def test_a_position_moves_only_from_where_it_is(tmp_path: Path, old: int | None) -> None:
    engine = open_database("feedback", home=tmp_path)
    with engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (None, 5)})
    with pytest.raises(Zombie), engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (old, 8)})
    with engine.connect() as conn:
        assert read_positions(conn, "join") == {(FEEDBACK, 0): 5}


def test_a_position_that_was_never_stored_cannot_be_moved(tmp_path: Path) -> None:
    engine = open_database("feedback", home=tmp_path)
    with pytest.raises(Zombie), engine.begin() as conn:
        advance(conn, "join", {(FEEDBACK, 0): (0, 8)})


def test_a_zombie_takes_its_whole_transaction_with_it(tmp_path: Path) -> None:
    engine = open_database("feedback", home=tmp_path)
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


def test_reading_goes_on_while_a_writer_holds_the_lock(tmp_path: Path) -> None:
    engine = open_database("serving", home=tmp_path)
    with engine.begin() as writer:
        advance(writer, "join", {(FEEDBACK, 0): (None, 5)})
        with reading(engine).connect() as conn:
            assert read_positions(conn, "join") == {}


@pytest.mark.parametrize("role", ["", "Feedback", "a-b", "x; drop table y"])
def test_a_role_is_a_plain_name(tmp_path: Path, role: str) -> None:
    with pytest.raises(ValueError, match="role name"):
        open_database(role, home=tmp_path)
