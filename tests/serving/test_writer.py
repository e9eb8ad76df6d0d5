"""The writer: in order, whole or not at all, and nothing that a waiter does stops it."""

from pathlib import Path

import pytest
from sqlalchemy import text

from feedback.store import open_database
from serving.writer import Writer


def test_a_waiter_cannot_call_a_job_off(tmp_path: Path) -> None:
    database = open_database("serving", home=tmp_path)
    writer = Writer(database)
    first = writer.submit(lambda conn: conn.execute(text("create table said (word text)")) and None)
    first.cancel()
    second = writer.submit(lambda conn: conn.execute(text("insert into said values ('a')")).rowcount)
    writer.start()
    assert second.result(5) == 1
    assert not first.cancelled()
    writer.stop()
    database.dispose()


def test_a_job_that_fails_takes_nobody_with_it(tmp_path: Path) -> None:
    database = open_database("serving", home=tmp_path)
    writer = Writer(database)
    made = writer.submit(lambda conn: conn.execute(text("create table said (word text)")).rowcount)
    broken = writer.submit(lambda conn: conn.execute(text("insert into nothing values (1)")).rowcount)
    kept = writer.submit(lambda conn: conn.execute(text("insert into said values ('a')")).rowcount)
    writer.start()
    made.result(5)
    assert kept.result(5) == 1
    with pytest.raises(Exception, match="nothing"):
        broken.result(5)
    writer.stop()
    database.dispose()
