"""MLflow's aliases as a projection of our ledger: `champion`, `challenger`, `previous-champion`.

Nobody reads them back. A thread of its own writes them, so MLflow being slow or away delays them and nothing else.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from deploy.canary import history, ledger
from feedback.store import reading

log = logging.getLogger(__name__)

Aliases = dict[str, str | None]


class Registrar(Protocol):
    """The part of the registry that the projection needs."""

    def set_aliases(self, aliases: Mapping[str, str | None]) -> None:
        """Point aliases at versions; None removes one."""


class Projection:
    """Writes the aliases whenever they differ from what was written last, and again every `repeat_s` whoever else moved them.

    `down` is what the registry raises when it is away.
    """

    def __init__(
        self,
        engine: Engine,
        registrar: Registrar,
        *,
        down: type[Exception],
        retry_s: float = 15.0,
        repeat_s: float = 300.0,
    ) -> None:
        self._engine = reading(engine)
        self._registrar = registrar
        self._down = down
        self._retry_s = retry_s
        self._repeat_s = repeat_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alias-projection", daemon=True)
        self._written_at = 0.0
        self.written: Aliases | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    def stop(self) -> None:
        """End without waiting for MLflow: what is not written is written at the next start."""
        self._stopping.set()
        self._wake.set()

    def write(self) -> bool:
        """Write if needed; whether the aliases are as they should be. A database or registry that refuses is asked again."""
        try:
            wanted = self._wanted()
            if wanted is None:
                return True
            self._registrar.set_aliases(wanted)
        except (SQLAlchemyError, self._down) as error:
            log.warning("aliases wait: %s", str(error).partition("\n")[0])
            return False
        self.written, self._written_at = wanted, time.monotonic()
        return True

    def _wanted(self) -> Aliases | None:
        """What must be written now, if anything."""
        with self._engine.connect() as conn:
            wanted = None if history.newest_split(conn) is None else wanted_aliases(conn)
        is_fresh = time.monotonic() - self._written_at < self._repeat_s
        return None if wanted == self.written and is_fresh else wanted

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self.write():
                self._stopping.wait(self._retry_s)
            else:
                self._wake.wait(self._repeat_s)
            self._wake.clear()


def wanted_aliases(conn: Connection) -> Aliases:
    """What the ledger says now."""
    stack = history.champions(conn)
    active = ledger.active_canary(conn)
    return {
        "champion": stack[-1].version,
        "previous-champion": stack[-2].version if len(stack) > 1 else None,
        "challenger": None if active is None or active.verdict is not None else active.version,
    }
