"""`python -m feedback`: build the worker by hand and run it until SIGTERM."""

import argparse
import logging
import signal
import sys
import threading
import time

from feedback.agent_file import AgentFileError, load_agent_file
from feedback.bus import Bus, BusError, TopicMismatch
from feedback.config import Settings
from feedback.kafka import KafkaBus
from feedback.monitor import Monitor
from feedback.outbox import Outbox
from feedback.store import open_database
from feedback.worker import Worker

_log = logging.getLogger("feedback")


def main(arguments: list[str] | None = None) -> int:
    """Exit 0 on a clean stop, 2 on an agent file or topics that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m feedback",
        description="Joins interactions with feedback and prices them. Settings come from the environment (FEEDBACK_…).",
    )
    parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve(Settings(), stop)
    except (AgentFileError, TopicMismatch) as error:
        _log.error("%s", error)
        return 2
    return 0


def serve(settings: Settings, stop: threading.Event) -> None:
    """Run until `stop`. A broker that is not there yet is waited for."""
    agent = load_agent_file(settings.agent_file)
    engine = open_database("feedback", home=settings.home, url=settings.database)
    monitor = Monitor()
    if settings.metrics_port:
        monitor.serve(settings.host, settings.metrics_port)
    bus = KafkaBus(settings.kafka, "feedback")
    if not make_topics(bus, settings.partitions, stop):
        return
    worker = Worker(
        engine,
        bus,
        agent=agent,
        outbox=Outbox(engine, settings.outbox_bound),
        monitor=monitor,
        clock=lambda: time.time_ns() // 1_000_000,
        retention_ms=round(settings.retention_s * 1000),
    )
    _log.info("joining feedback of %s from %s", agent.agent, settings.kafka)
    worker.run(stop)
    bus.close()
    engine.dispose()
    _log.info("stopped")


def make_topics(bus: Bus, partitions: int, stop: threading.Event) -> bool:
    """Wait until the topics are as they must be; False when told to stop first."""
    waiting = False
    while not stop.is_set():
        try:
            bus.ensure_topics(partitions)
            return True
        except TopicMismatch:
            raise
        except BusError as error:
            if not waiting:
                _log.warning("waiting for the bus: %s", error)
            waiting = True
            stop.wait(1.0)
    return False


if __name__ == "__main__":
    sys.exit(main())
