"""Several streams read as one. Whatever ends the reader ends every stream before it goes on."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

E = TypeVar("E")


async def side_by_side(
    streams: Sequence[AsyncGenerator[E, None]],
) -> AsyncGenerator[tuple[int, E | None], None]:
    """(which, event) as they come, and (which, None) when one has ended. The first failure is raised and ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for event in only:
                yield 0, event
        yield 0, None
        return
    queue: asyncio.Queue[tuple[int, E | Exception | None]] = asyncio.Queue(1)
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            index, found = await queue.get()
            if isinstance(found, Exception):
                raise found
            left -= found is None
            yield index, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int, stream: AsyncGenerator[E, None], queue: "asyncio.Queue[tuple[int, E | Exception | None]]"
) -> None:
    try:
        async with aclosing(stream) as events:
            async for event in events:
                await queue.put((index, event))
    except Exception as error:  # noqa: BLE001 - raised again in the reader
        await queue.put((index, error))
    else:
        await queue.put((index, None))
