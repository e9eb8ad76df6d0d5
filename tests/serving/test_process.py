"""The process as it is started: up without Kafka or MLflow, killed at work, stopped cleanly."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from serving.engines.stub.script import Reply
from serving.engines.stub.server import StubEngine, start_stub
from tests.serving.harness import AGENT, BASE, KEYS, bearer, scripted, until, write_agent
from tests.serving.tiny import tiny_tokenizer


async def free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


@asynccontextmanager
async def gateway(
    home: Path, engine: str
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", httpx.AsyncClient]]:
    """`python -m serving` with nothing but an engine around it."""
    port, nobody = await free_port(), await free_port()
    if not (home / "agent.yaml").exists():
        write_agent(home)
    environment = {
        **os.environ,
        "RATCHET_HOME": str(home / "home"),
        "RATCHET_AGENT": str(home / "agent.yaml"),
        "RATCHET_KAFKA": f"127.0.0.1:{nobody}",
        "RATCHET_API_KEYS": KEYS,
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{nobody}",
        "SERVING_ENGINES": engine,
        "SERVING_PORT": str(port),
    }
    process = subprocess.Popen([sys.executable, "-m", "serving"], env=environment, stderr=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            limit = time.monotonic() + 60
            while True:
                assert process.poll() is None and time.monotonic() < limit
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
            yield process, http
    finally:
        process.kill()
        process.wait()


def body(text: str, *, stream: bool = False) -> dict[str, object]:
    return {"model": AGENT, "messages": [{"role": "user", "content": text}], "stream": stream}


async def test_killed_in_the_middle_of_a_reply_it_forgets_nothing_and_stops_cleanly(tmp_path: Path) -> None:
    script = scripted({"slow": Reply("one two three four five", each_s=0.2)})
    stub = StubEngine(BASE, tiny_tokenizer(), script)
    runner, engine = await start_stub(stub)
    try:
        async with gateway(tmp_path, engine) as (process, http):
            done = (await http.post("/v1/chat/completions", json=body("Hi"), headers=bearer())).json()
            async with http.stream(
                "POST", "/v1/chat/completions", json=body("slow", stream=True), headers=bearer()
            ) as response:
                assert response.status_code == 200
                process.kill()
                process.wait()
        database = tmp_path / "home" / "db" / "serving.sqlite"
        with sqlite3.connect(database) as conn:
            statuses = dict(conn.execute("select response_id, status from interactions"))
        assert sorted(statuses.values()) == ["completed", "open"]
        async with gateway(tmp_path, engine) as (process, http):
            for response_id in statuses:
                rating = {"response_id": response_id, "name": "user_rating", "value": True}
                assert (await http.post("/v1/feedback", json=rating, headers=bearer())).status_code == 202
            shown = (await http.get(f"/v1/episodes/{done['episode_id']}", headers=bearer())).json()
            assert shown["interactions"][0]["status"] == "completed"
            spool = (await http.get("/readyz")).json()["spool"]
            assert spool["waiting"] == 4  # two interactions, one of them recovered, and two ratings
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0
            assert time.monotonic() - begun < 10
    finally:
        await runner.cleanup()


def test_a_fault_in_what_a_person_wrote_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("agnet: x")
    environment = {**os.environ, "RATCHET_HOME": str(tmp_path), "RATCHET_AGENT": str(tmp_path / "agent.yaml")}
    found = subprocess.run(
        [sys.executable, "-m", "serving"], env=environment, capture_output=True, check=False
    )
    assert found.returncode == 2
    assert b"did you mean 'agent'" in found.stderr and b"Traceback" not in found.stderr


async def test_an_idle_connection_outlives_every_clients_patience(tmp_path: Path) -> None:
    """Clients keep idle connections for five seconds and longer; one closed under a request is a failed reply."""
    runner, engine = await start_stub(StubEngine(BASE, tiny_tokenizer(), scripted({})))
    try:
        async with gateway(tmp_path, engine) as (_, http):
            reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(), 6.5)
            assert not reader.at_eof()
            writer.close()
    finally:
        await runner.cleanup()
