"""`python -m serving`: one gateway process. SIGTERM stops it cleanly within ten seconds, with exit code 0."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from feedback.agent_file import AgentFileError
from feedback.kafka import KafkaBus
from serving.app import create_app
from serving.assembly import running
from serving.auth import KeyFileError
from serving.config import Settings
from serving.engines.adapter_cache import warm_mlflow
from serving.protocol import BoundedHttp

KEEP_ALIVE_S = 75
"""Longer than any client keeps an idle connection, so that it is never closed under a request that is on its way."""

_log = logging.getLogger("serving")


class _Server(uvicorn.Server):
    """uvicorn raises the signal again when it has stopped; a clean stop is exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True


async def serve(settings: Settings) -> None:
    """Run until told to stop."""
    bus = KafkaBus(settings.kafka, "ratchet-serving")
    try:
        async with running(settings, bus) as gateway:
            threading.Thread(target=warm_mlflow, name="warm-mlflow", daemon=True).start()
            config = uvicorn.Config(
                create_app(gateway),
                host=settings.host,
                port=settings.port,
                http=BoundedHttp,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=5,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
            _log.info("listening on %s:%d", settings.host, settings.port)
            await _Server(config).serve()
    finally:
        await asyncio.to_thread(bus.close)


def main() -> int:
    """Exit code 2 for a fault in what a person wrote."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    sys.setswitchinterval(0.0005)  # the writer thread must not hold up the event loop for 5 ms
    try:
        uvloop.run(serve(Settings()))
    except (AgentFileError, KeyFileError) as error:
        _log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
