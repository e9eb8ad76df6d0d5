"""`python -m online_trainer`: build everything by hand and run until SIGTERM. `--help` answers before torch is imported."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time

from online_trainer.config import Settings


def main(arguments: list[str] | None = None) -> int:
    """Exit 0 on a clean stop, 2 on an agent file or home that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m online_trainer",
        description="Turns experiences into adapters. Settings come from the environment (TRAINER_…).",
    )
    parser.parse_args(arguments)
    settings = Settings()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    from online_trainer.start import StartError, serve

    try:
        serve(settings, stopping, clock=lambda: time.time_ns() // 1_000_000)
    except StartError as error:
        logging.getLogger("online_trainer").error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
