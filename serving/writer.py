"""One thread that does all writes of this process, in order; jobs that wait together share a commit.

A job either happens whole or not at all, and its future is done only after the commit: what was acknowledged
survives `kill -9`.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

_log = logging.getLogger(__name__)

T = TypeVar("T")
_Entry = tuple[Callable[[Connection], Any], "Future[Any]"]
_TOGETHER = 64


class Writer:
    """`submit` never blocks; `stop` finishes what was submitted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="serving-writer", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def submit(self, job: Callable[[Connection], T]) -> "Future[T]":
        """Queue a job behind all earlier ones; its future cannot be cancelled."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._jobs.put((job, future))
        return future

    async def write(self, job: Callable[[Connection], T]) -> T:
        """Queue a job and wait until it is committed; a cancelled waiter does not undo it."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(job)))

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finish what is queued, then end."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            entries, last = self._waiting(first)
            self._commit(entries)
            if last:
                return

    def _waiting(self, first: _Entry) -> tuple[list[_Entry], bool]:
        entries = [first]
        while len(entries) < _TOGETHER:
            try:
                entry = self._jobs.get_nowait()
            except queue.Empty:
                break
            if entry is None:
                return entries, True
            entries.append(entry)
        return entries, False

    def _commit(self, entries: list[_Entry]) -> None:
        """One transaction, a savepoint for each job, so that a failing job takes nobody with it."""
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with self._engine.begin() as conn:
                for job, future in entries:
                    outcomes.append((future, *_attempt(conn, job)))
        except Exception as error:  # noqa: BLE001 - the database failed: every waiter is told
            _log.error("write failed: %s", type(error).__name__)
            for _, future in entries:
                future.set_exception(error)
            return
        for future, value, problem in outcomes:
            if problem is None:
                future.set_result(value)
            else:
                future.set_exception(problem)


def _attempt(conn: Connection, job: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
    try:
        with conn.begin_nested():
            return job(conn), None
    except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the job
        return None, error
