"""Databases for one test, all of one kind, by name: the same name is the same database, opened again."""

from pathlib import Path

from sqlalchemy import Engine

from feedback.store import open_database
from tests.postgres import Postgres


class Stores:
    """SQLite files under a folder, or databases of a PostgreSQL server."""

    def __init__(self, home: Path, server: Postgres | None) -> None:
        self._home = home
        self._server = server
        self._urls: dict[str, str] = {}
        self._opened: list[Engine] = []

    def url(self, name: str = "one") -> str:
        """What RATCHET_DATABASE would say."""
        if self._server is None:
            return ""
        if name not in self._urls:
            self._urls[name] = self._server.new_database()
        return self._urls[name]

    def open(self, name: str = "one", *, role: str = "feedback") -> Engine:
        """The role's tables in that database."""
        engine = open_database(role, home=self._home / name, url=self.url(name))
        self._opened.append(engine)
        return engine

    def close(self) -> None:
        """Let go of every connection."""
        for engine in self._opened:
            engine.dispose()
