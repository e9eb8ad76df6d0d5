"""The demo while users talk: one loop that looks at everything once a second and draws it.

A dead part of the stack, or users that stopped by themselves, end the demo at the next look.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live

from deploy.demo.stage import Scene, Screen
from deploy.demo.steering import Steering
from deploy.demo.tail import UpdateTail
from deploy.simulation.pool import UserPool
from deploy.stack.up import Stack

LOOK_S = 1.0


class Performance:
    """Users, stack and screen together."""

    def __init__(
        self,
        pool: UserPool,
        steering: Steering,
        stack: Stack,
        updates: UpdateTail,
        console: Console,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._look_s = look_s
        self.scene = Scene()
        self.pool = pool
        self.steering = steering
        self.updates = updates
        self._stack = stack
        self._screen = Screen(console)
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        )
        self._users: asyncio.Task[None] | None = None

    def __enter__(self) -> "Performance":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, said: str) -> None:
        """One line that stays on the terminal."""
        self._console.print(said, soft_wrap=True, highlight=False)

    def open_doors(self) -> None:
        """Let the users in."""
        self._users = asyncio.create_task(self.pool.run())

    async def close_doors(self) -> None:
        """Nobody new; return when every conversation is over and every rating sent."""
        self.pool.stop.set()
        if self._users is not None:
            await self.keep_looking("the last users leave", self._users)

    async def until(
        self, stage: str, is_over: Callable[[], bool], *, progress: Callable[[], float], limit_s: float
    ) -> bool:
        """Look until `is_over` (True) or until `limit_s` has passed (False)."""
        began = time.monotonic()
        while True:
            spent = time.monotonic() - began
            await self.look(stage, max(progress(), spent / limit_s))
            if is_over():
                return True
            if spent >= limit_s:
                return False
            await asyncio.sleep(self._look_s)

    async def keep_looking(self, stage: str, work: "asyncio.Task[Any]", *, expected_s: float = 60.0) -> Any:
        """Look until `work` is done; its result."""
        began = time.monotonic()
        while not work.done():
            await self.look(stage, min(0.99, (time.monotonic() - began) / expected_s))
            await asyncio.wait({work}, timeout=self._look_s)
        return work.result()

    async def look(self, stage: str, done: float) -> None:
        """Read everything once and draw it. Raises UpError when a part has died for good."""
        for line in self._stack.check():
            self.say(line)
        if self._users is not None and self._users.done():
            self._users.result()
        scene = self.scene
        scene.stage, scene.done = stage, min(1.0, done)
        scene.counters = vars(self.pool.counters)
        scene.updates = await asyncio.to_thread(self.updates.counts)
        scene.status = await self.steering.status() or scene.status
        if self._live is not None:
            self._live.update(self._screen.render(scene))
        else:
            self._screen.line(scene)
