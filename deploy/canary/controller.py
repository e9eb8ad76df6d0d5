"""The controller's loop. Read `turn`: it is the whole of it; what its verbs do is in the files that they come from.

What was read, what it decided, the event that says so and the split that follows are one transaction: a controller that
is killed anywhere goes on as if it had not been.
"""

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from deploy.canary.intake import Intake
from deploy.canary.judging import compare_with_anchor, confirm_delivery, judge_units
from deploy.canary.projection import Projection
from deploy.canary.steering import Steering
from feedback.outbox import Outbox, OutboxFull

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class Controller:
    """Moves canaries by what comes over the bus."""

    def __init__(
        self,
        steering: Steering,
        intake: Intake,
        outbox: Outbox,
        *,
        projection: Projection,
        wake: Callable[[], None],
    ) -> None:
        self._steering = steering
        self._intake = intake
        self._outbox = outbox
        self._projection = projection
        self._wake = wake
        self.lag: dict[tuple[str, int], int] = {}

    def run(self, stop: threading.Event) -> None:
        """Until stopped. A database or spool that refuses is tried again from what is stored; a zombie ends the process."""
        self._steering.open()
        while not stop.is_set():
            try:
                self.turn()
            except (SQLAlchemyError, OutboxFull) as error:
                log.warning("this turn is undone and tried again: %s", str(error).splitlines()[0])
                self._intake.close()
                stop.wait(_RETRY_S)
        self._intake.close()

    def turn(self) -> None:
        """Read; take in, confirm, admit, judge, compare with the anchor; then tell the others."""
        batch = self._intake.read()
        self.lag = dict(batch.lag)
        with self._steering.transaction() as conn:
            positions = self._intake.take_in(conn, batch, steering=self._steering)
            confirm_delivery(conn, self._steering, outbox=self._outbox)
            self._steering.admit(conn)
            taken = judge_units(conn, self._steering, watermarks=batch.watermarks)
            compare_with_anchor(conn, self._steering, taken=taken)
        self._intake.committed(positions)
        self._wake()
        self._projection.wake()
