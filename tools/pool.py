"""Threads for tools that block: a fixed number of them, which never hold up the end of the process.

Invariant: a job that hangs costs its own thread and nothing else; jobs wait, they never add threads.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class DaemonPool(Generic[T]):
    """Like ThreadPoolExecutor, but with daemon threads: that one joins a hung thread at exit, for ever."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[tuple[Future[T], Callable[[], T]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """`work` must not raise."""
        future: Future[T] = Future()
        with self._lock:
            if len(self._threads) < self._size:
                name = f"tool-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
        self._jobs.put((future, work))
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._jobs.get()
            if future.set_running_or_notify_cancel():
                future.set_result(work())
