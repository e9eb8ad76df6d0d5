"""`python -m deploy`: the controller and its API in one process. SIGTERM ends it within ten seconds, with nothing half done."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from deploy.api.app import create_app
from deploy.api.desk import Desk
from deploy.canary.controller import Controller
from deploy.canary.gatekeeper import file_gate
from deploy.canary.intake import Intake
from deploy.canary.offers import Offers
from deploy.canary.projection import Projection
from deploy.canary.steering import Steering
from deploy.canary.tables import create_tables
from deploy.config import Settings
from feedback.agent_file import AgentFileError, load_agent_file
from feedback.kafka import KafkaBus
from feedback.outbox import Drainer, Outbox
from feedback.store import open_database
from online_trainer.registry import Registry, RegistryDown, VersionTaken
from serving.auth import KeyFileError, load_keys

log = logging.getLogger("deploy")


def main() -> int:
    """Build everything by hand, run until told to stop."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    settings = Settings()
    try:
        agent = load_agent_file(settings.agent_file)
        keys = load_keys(settings.home, settings.api_keys)
    except (AgentFileError, KeyFileError) as error:
        log.error("%s", error)
        return 2
    engine = open_database("deploy", home=settings.home, url=settings.database)
    create_tables(engine)
    outbox = Outbox(engine, settings.spool_bound)
    bus = KafkaBus(settings.kafka, "deploy")
    drainer = Drainer(outbox, bus)
    registry = Registry(settings.mlflow, agent.agent)
    steering = Steering(engine, outbox, agent, clock=lambda: time.time_ns() // 1_000_000)
    steering.open()
    projection = Projection(engine, registry, down=RegistryDown, retry_s=settings.alias_retry_s)
    controller = Controller(
        steering,
        Intake(bus, engine, outbox, partitions=settings.partitions, poll_s=settings.poll_s),
        outbox,
        projection=projection,
        wake=drainer.wake,
    )
    stop = threading.Event()
    loop = _Loop(controller, stop)
    app = create_app(
        Desk(
            steering,
            Offers(steering, registry, gate=file_gate(agent), taken=VersionTaken),
            keys,
            outbox,
            registry_down=RegistryDown,
            lag=lambda: controller.lag,
            is_alive=loop.is_alive,
        )
    )
    drainer.start()
    projection.start()
    loop.start()
    server = _Server(
        uvicorn.Config(
            app, host=settings.host, port=settings.port, log_level="warning", timeout_graceful_shutdown=3
        )
    )
    loop.on_end = server.ask_to_stop
    server.run()
    stop.set()
    loop.join(5.0)
    projection.stop()
    drainer.stop()
    bus.close()
    return 1 if loop.failed else 0


class _Loop(threading.Thread):
    """The controller's thread; its death ends the process, which is started again from what is stored."""

    def __init__(self, controller: Controller, stop: threading.Event) -> None:
        super().__init__(name="controller", daemon=True)
        self._controller = controller
        self._stop_event = stop
        self.failed = False
        self.on_end: Callable[[], None] = _nothing

    def run(self) -> None:
        try:
            self._controller.run(self._stop_event)
        except Exception:
            self.failed = True
            raise
        finally:
            self.on_end()


def _nothing() -> None:
    """Before there is a server to stop."""


class _Server(uvicorn.Server):
    """uvicorn that can be told to stop from another thread, and for which a signal is an ordinary end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT; uvicorn's own would raise them again afterwards and spoil the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask_to_stop())
        yield

    def ask_to_stop(self) -> None:
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
