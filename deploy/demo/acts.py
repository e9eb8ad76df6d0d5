"""The acts of the demo that users live through: learning, and the sabotage."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.children import ChildFailed, Children
from deploy.demo.live import Performance
from deploy.demo.sizes import Sizes


@dataclass(frozen=True)
class Sabotage:
    """What became of the sabotaged candidate."""

    version: str
    rolled_back: bool
    success: float
    faulty_share: float


async def learn(show: Performance, sizes: Sizes) -> None:
    """Until enough episodes are rated and enough was promoted, or until the time is up."""
    began = time.monotonic()

    def progress() -> float:
        return show.pool.counters.rated / sizes.rated

    def is_over() -> bool:
        promoted = (show.scene.status.get("verdicts") or {}).get("promoted") or 0
        return progress() >= 1.0 and (
            promoted >= sizes.promotions or time.monotonic() - began > 0.75 * sizes.learn_s
        )

    await show.until("users teach", is_over, progress=progress, limit_s=sizes.learn_s)


async def end_by_hand(show: Performance, sizes: Sizes, *, serves_s: float = 10.0) -> None:
    """`--short`: wait for the first canary and promote it by a manual verb."""
    active: dict[str, Any] = {}

    def is_over() -> bool:
        active.update(show.scene.status.get("canary") or {})
        return bool(active)

    await show.until("users teach", is_over, progress=lambda: 0.0, limit_s=sizes.learn_s)
    if active:
        await show.until("the candidate is tried", lambda: False, progress=lambda: 0.0, limit_s=sizes.trial_s)
        await show.steering.promote(active["id"])
        await show.until("the champion serves", lambda: False, progress=lambda: 0.0, limit_s=serves_s)


async def sabotage(
    show: Performance, sizes: Sizes, children: Children, *, champion: Path | None, out: Path
) -> Sabotage:
    """Make a harmful adapter, offer it like anybody could, and watch the canary deal with it.

    What people offer goes before what the trainer offers, but a trial that runs ends first: by its verdict, or
    superseded once it has had its units.
    """
    making = asyncio.create_task(children.sabotage(champion, out))
    try:
        made: dict[str, Any] = await show.keep_looking("a saboteur trains", making, expected_s=90.0)
    except ChildFailed as error:
        show.say(str(error))
        return Sabotage(version="none", rolled_back=False, success=1.0, faulty_share=0.0)
    offering = asyncio.create_task(show.steering.offer(out))
    offered: dict[str, Any] = await show.keep_looking("the sabotage is offered", offering, expected_s=30.0)
    trial: dict[str, Any] = {}

    def is_over() -> bool:
        recent = {row["id"]: row for row in show.scene.status.get("recent") or ()}
        trial.update(recent.get(offered["id"], {}))
        return bool(trial.get("verdict"))

    await show.until("the sabotage is tried", is_over, progress=lambda: 0.0, limit_s=sizes.trial_s)
    return Sabotage(
        version=offered["version"],
        rolled_back=trial.get("verdict") == "rolled_back",
        success=made["success"],
        faulty_share=made["faulty_share"],
    )
