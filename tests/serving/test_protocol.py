"""A connection that never finishes its head is cut off; a large body is not taken for one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from serving.protocol import LONGEST_HEAD, BoundedHttp
from tests.serving.harness import until


async def echo_size(scope: Any, receive: Any, send: Any) -> None:
    """An application that says how much it got."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(echo_size, port=0, log_config=None, lifespan="off", http=BoundedHttp)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
    yield reader, writer
    writer.close()
    server.should_exit = True
    await task


@pytest.mark.parametrize("endless", [b"x" * 8192, b"a: b\r\n" * 1000])
async def test_an_endless_head_is_cut_off(endless: bytes) -> None:
    async with connection() as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: here\r\nx-endless: ")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 16 * LONGEST_HEAD:
                writer.write(endless)
                sent += len(endless)
                await writer.drain()
                await asyncio.sleep(0)


async def test_a_large_body_and_the_request_after_it_are_read() -> None:
    size = 4 * LONGEST_HEAD
    async with connection() as (reader, writer):
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % size)
            writer.write(b"x" * size)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"chunked" in head
            assert str(size).encode() in await reader.readuntil(b"0\r\n\r\n")
