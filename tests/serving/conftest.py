"""The tests of what the gateway keeps in SQL run on both databases, the same ones."""

import pytest

from tests.postgres import Postgres

STORED = ("test_episodes", "test_feedback")
"""Modules whose tests are about the gateway's tables."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in STORED:
        metafunc.fixturenames.append("database")
        metafunc.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a gateway of this test keeps its tables."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        monkeypatch.setenv("RATCHET_DATABASE", server.new_database())
