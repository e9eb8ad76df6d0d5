"""`python -m online_trainer`: build everything by hand and run until SIGTERM. `--help` answers before torch is imported."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time

from online_trainer.config import Settings

PATIENCE_S = 6.0


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
        signal.signal(number, lambda *_: _stop(stopping))
    from online_trainer.start import serve
    from online_trainer.trainer import StartError

    try:
        serve(settings, stopping, clock=lambda: time.time_ns() // 1_000_000)
    except StartError as error:
        logging.getLogger("online_trainer").error("%s", error)
        return 2
    return 0


def _stop(stopping: threading.Event) -> None:
    """Ask the loop to end; an update takes longer than anyone waits, and is made again from its checkpoint."""
    stopping.set()
    patience = threading.Timer(PATIENCE_S, os._exit, args=(0,))
    patience.daemon = True
    patience.start()


if __name__ == "__main__":
    sys.exit(main())
