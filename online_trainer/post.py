"""What the trainer says, on its way to the bus: sent until it is acknowledged.

Invariant: a message that the bus never takes holds no other up, and none is lost without a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from feedback.bus import Bus, BusError, Oversized, check_size
from online_trainer.state import Letter

FLUSH_S = 30.0

log = logging.getLogger(__name__)


def deliver(bus: Bus, letters: Sequence[Letter]) -> list[Letter]:
    """Send them; what comes back was not acknowledged, and sending it again does no harm.

    All at once where the bus takes them. Else one by one, so that a refused one is found: it waits behind the others.
    """
    fitting = [letter for letter in letters if _fits(letter)]
    try:
        _send(bus, fitting)
        return []
    except BusError as error:
        log.warning("%d messages wait for the bus: %s", len(fitting), error)
    return _one_by_one(bus, fitting) if len(fitting) > 1 else fitting


def _one_by_one(bus: Bus, letters: Sequence[Letter]) -> list[Letter]:
    """Until the bus is out of reach, or acknowledges nothing twice in a row."""
    refused: list[Letter] = []
    for at, letter in enumerate(letters):
        try:
            _buffer(bus, letter)
        except BusError:
            return [*refused, *letters[at:]]
        try:
            bus.flush(FLUSH_S)
        except BusError as error:
            log.warning("%s: not taken: %s", letter.topic, error)
            refused.append(letter)
            if at and refused[-2:] == [letters[at - 1], letter]:
                return [*letters[at + 1 :], *refused]
    return refused


def _send(bus: Bus, letters: Sequence[Letter]) -> None:
    for letter in letters:
        _buffer(bus, letter)
    bus.flush(FLUSH_S)


def _buffer(bus: Bus, letter: Letter) -> None:
    bus.send(letter.topic, letter.key, letter.value.encode(), timestamp_ms=letter.at)


def _fits(letter: Letter) -> bool:
    """A message too large for any broker can never be sent: it is dropped, loudly."""
    try:
        check_size(letter.topic, letter.value.encode())
    except Oversized as error:
        log.error("a message is dropped: %s", error)
        return False
    return True
