"""Wait until everything the users did has passed through Kafka, the join and the price."""

import asyncio
import time
from collections.abc import Sequence

from deploy.demo.clients import Clients, mismatches, rating_counts
from deploy.demo.facts import Facts, collect
from feedback.bus import Bus

LOOK_S = 10.0


async def settle(bus: Bus, clients: Clients, *, limit_s: float) -> Facts:
    """The facts once the clients' episodes and ratings are all in them, or as they stand after `limit_s`."""
    began = time.monotonic()
    while True:
        facts = await asyncio.to_thread(collect, bus)
        counts = rating_counts(clients, facts)
        is_whole = not mismatches(clients, facts) and not counts["lost"]
        if (is_whole and _are_taken(facts)) or time.monotonic() - began > limit_s:
            return facts
        await asyncio.sleep(LOOK_S)


def _are_taken(facts: Facts) -> bool:
    """Whether every episode is past its cut-off: nothing will be judged or trained after this."""
    newest: Sequence[int] = [experience.cutoff_at for experience in facts.experiences.values()]
    return not newest or max(newest) <= time.time() * 1000
