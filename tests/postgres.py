"""A PostgreSQL server of the tests' own, in a temporary folder, run by a user without privileges; a fresh database for each test.

Where Debian's server is missing and only root could install it, the tests that need it are skipped, with what to install.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.running import running

_SETUP = Path(__file__).parent.parent / "deploy" / "setup.sh"
_USERS = ("postgres", "nobody")
_OWNER = "ratchet"


@dataclass
class Postgres:
    """A running server; it listens in its own folder only."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=count)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://{_OWNER}@/{name}?host={self.folder}"

    def answers(self) -> bool:
        try:
            psycopg.connect(self._dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _dsn(self) -> str:
        return f"host={self.folder} user={_OWNER} dbname=postgres"


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start it, and leave nothing behind."""
    binaries = find_binaries()
    # Not under pytest's own folder, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="ratchet-postgres-"))
    try:
        yield from _serve(binaries, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`, installed first where root is had."""
    if (found := _installed()) is not None:
        return found
    done = subprocess.run(["bash", str(_SETUP), "postgres"], capture_output=True, text=True)
    found = _installed()
    said = done.stderr.strip().splitlines()[-1]
    if found is None and os.getuid() != 0:
        pytest.skip(said)
    assert found is not None, said
    return found


def _installed() -> Path | None:
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(versions, key=lambda path: float(path.parts[-3]))[-1:]
    found = newest[0] if newest else shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


def _serve(binaries: Path, folder: Path) -> Iterator[Postgres]:
    as_user = _unprivileged(folder)
    data, log = folder / "data", folder / "log"
    subprocess.run(
        [*as_user, binaries / "initdb", "-D", data, "-U", _OWNER, "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "unix_socket_permissions": "0777",
        "fsync": "off",
        "max_connections": "200",
    }
    settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    server = Postgres(folder)
    command = [*as_user, str(binaries / "postgres"), "-D", str(data), *settings]
    with running(command, server.answers, log=log):
        yield server


def _unprivileged(folder: Path) -> Sequence[Any]:
    """What to put before a command so that root does not run it: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return ()
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam(next(name for name in _USERS if name in known))
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
