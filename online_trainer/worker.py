"""The trainer's loop. Read `run`: it is the whole of it; every verb lives in a file of its own.

Invariant: what decides the next update is in the checkpoint before the update is made, and what it did is in the next one
before anyone is told. A trainer killed anywhere goes on to the same bits.
"""

from __future__ import annotations

import threading

from online_trainer.gather import gather, tell
from online_trainer.improve import improve
from online_trainer.learn import credit, reward, study, value
from online_trainer.settle import settle
from online_trainer.take import take
from online_trainer.trainer import Trainer


def run(trainer: Trainer, stopping: threading.Event, *, poll_s: float) -> None:
    """collect -> reward model -> critic -> credit -> update -> accept, shrink or refuse -> checkpoint -> offer."""
    while not stopping.is_set():
        is_news = gather(trainer, poll_s=poll_s)
        tell(trainer)
        taken = take(trainer)
        if taken is None:
            trainer.parts.boundary("waiting" if is_news else "idle")
            continue
        seen = study(trainer, taken)
        judgement = reward(trainer, taken)
        valued = value(trainer)
        assigned = credit(trainer, taken, judgement, valued)
        made = improve(trainer, taken, seen, judgement, assigned)
        settle(trainer, taken, judgement, assigned, made)
