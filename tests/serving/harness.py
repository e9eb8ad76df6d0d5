"""A whole gateway over real HTTP in this process: stub engines, MemoryBus, real SQLite."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import uvicorn
from safetensors.numpy import save_file

from feedback.bus import MemoryBus
from feedback.manifest import CONFIG, PROBE, WEIGHTS, seal
from feedback.schemas import (
    INTERACTIONS,
    TRAFFIC_SPLITS,
    AdapterRef,
    Interaction,
    TrafficSplit,
    read_episode_record,
)
from serving.app import create_app
from serving.assembly import running
from serving.config import Settings
from serving.engines.stub.script import Reply
from serving.engines.stub.server import StubEngine, start_stub
from serving.gateway import Gateway
from tests.serving.tiny import tiny_tokenizer, write_model

AGENT = "travel-desk"
BASE = "travel-desk-000000"
KEYS = "app:secret-app:chat+feedback+end-users,other:secret-other:chat+feedback,root:secret-root:chat+feedback+admin+end-users,mute:secret-mute:feedback,talk:secret-talk:chat"


def bearer(name: str = "app") -> dict[str, str]:
    return {"Authorization": f"Bearer secret-{name}"}


class Clock:
    """Milliseconds that move when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@dataclass
class World:
    """Everything a test touches."""

    home: Path
    bus: MemoryBus
    stubs: list[StubEngine]
    gateway: Gateway
    http: httpx.AsyncClient
    clock: Clock
    url: str
    generation: int = 0
    positions: dict[Any, int] = field(default_factory=dict)

    @property
    def stub(self) -> StubEngine:
        return self.stubs[0]

    async def chat(
        self, messages: Any, *, key: str = "app", headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return await self.http.post(
            "/v1/chat/completions",
            json={"model": AGENT, "messages": messages, **body},
            headers={**bearer(key), **(headers or {})},
        )

    async def answer(self, messages: Any, **body: Any) -> dict[str, Any]:
        response = await self.chat(messages, **body)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def rate(
        self, body: Any, *, key: str = "app", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self.http.post("/v1/feedback", json=body, headers={**bearer(key), **(headers or {})})

    def records(self, topic: str = INTERACTIONS) -> list[Any]:
        reader = self.bus.reader([topic])
        reader.seek({})
        return reader.poll(0)

    async def interactions(self, count: int) -> list[Interaction]:
        """The interactions on the bus, once there are `count`."""

        def found() -> list[Interaction]:
            messages = [read_episode_record(record.value) for record in self.records()]
            return sorted(
                (each for each in messages if isinstance(each, Interaction)),
                key=lambda each: (each.started_at, each.index),
            )

        await until(lambda: len(found()) >= count)
        return found()

    def publish(self, *, champion: AdapterRef | None = None, **fields: Any) -> TrafficSplit:
        self.generation += 1
        split = TrafficSplit(
            agent=AGENT,
            generation=self.generation,
            champion=champion or AdapterRef(version=BASE),
            at=self.clock(),
            **fields,
        )
        self.bus.send(TRAFFIC_SPLITS, AGENT, split.to_bytes(), timestamp_ms=self.clock())
        self.bus.flush(1)
        return split

    async def in_force(self, split: TrafficSplit) -> None:
        await until(
            lambda: (
                self.gateway.adapters.split is not None
                and self.gateway.adapters.split.generation >= split.generation
            )
        )


async def until(condition: Callable[[], Any], *, within_s: float = 10.0) -> None:
    """Poll with a deadline."""
    limit = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < limit, "the condition did not come true"
        await asyncio.sleep(0.01)


def write_agent(folder: Path, **changes: Any) -> Path:
    """An agent file over a tiny tokenizer."""
    write_model(folder / "model")
    value = {
        "agent": AGENT,
        "model": {"path": "model", "template": "desk", "max_context": 2000, "max_completion": 200},
        "system": "You are a travel desk agent.",
        "tools": ["tools.travel:flights", "tools.travel:hotels", "tools.calculator:calculate"],
        "limits": {"rounds": 3, "tool_calls": 6, "wall_s": 20, "tool_s": 2, "identical_calls": 2},
        **changes,
    }
    path = folder / "agent.yaml"
    path.write_text(json.dumps(value))
    return path


def write_adapter(
    folder: Path,
    version: str,
    *,
    shift: float = 0.05,
    prompts: Sequence[Sequence[int]] = ((5, 6, 7, 8),),
    lora_b: float = 0.5,
) -> AdapterRef:
    """A sealed adapter folder that the stub loads; its probe says that it moves log-probabilities by `shift`."""
    path = folder / version
    path.mkdir(parents=True)
    (path / CONFIG).write_text("{}")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    pair = {
        name.format("A"): np.full((2, 4), 0.5, np.float32),
        name.format("B"): np.full((4, 2), lora_b, np.float32),
    }
    save_file(pair, path / WEIGHTS, metadata={"version": version})
    base = [[-0.5] * (len(prompt) - 1) for prompt in prompts]
    moved = [[value + shift for value in row] for row in base]
    probe = {"prompts": [list(prompt) for prompt in prompts], "logprobs": moved, "base_logprobs": base}
    (path / PROBE).write_text(json.dumps(probe))
    return AdapterRef(version=version, uri=f"file://{path}", digest=seal(path))


def scripted(answers: dict[str, Any], default: Any = "Hello.") -> Callable[[str, list[int]], Reply]:
    """Answers by the newest user message, then by what follows it: `answers[user text]` is a list, one entry a turn."""
    tokenizer = tiny_tokenizer()

    def script(model: str, prompt: list[int]) -> Reply:
        text = tokenizer.decode(prompt, skip_special_tokens=False)
        user = text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        turn = text.rpartition("<|im_start|>user\n")[2].count("<|im_start|>assistant\n") - 1
        found = answers.get(user, default)
        found = found[min(turn, len(found) - 1)] if isinstance(found, list) else found
        return found if isinstance(found, Reply) else Reply(found)

    return script


@asynccontextmanager
async def world(
    home: Path,
    *,
    script: Any = None,
    engines: int = 1,
    bus: MemoryBus | None = None,
    clock: Clock | None = None,
    ready: bool = True,
    agent: dict[str, Any] | None = None,
    stubs: list[StubEngine] | None = None,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[World]:
    """Start everything; stop it in the right order."""
    agent_path = home / "agent.yaml"
    if not agent_path.exists():
        write_agent(home, **(agent or {}))
    script = script or scripted({})
    stubs = stubs or [StubEngine(BASE, tiny_tokenizer(), script) for _ in range(engines)]
    bus, clock = bus or MemoryBus(), clock or Clock()
    async with AsyncExitStack() as stack:
        urls = []
        for stub in stubs:
            runner, url = await start_stub(stub)
            stack.push_async_callback(runner.cleanup)
            urls.append(url)
        chosen = Settings(
            home=home / "home",
            agent_file=agent_path,
            api_keys=KEYS,
            engines=",".join(urls),
            **(settings or {}),
        )
        gateway = await stack.enter_async_context(running(chosen, bus, clock=clock))
        url = await stack.enter_async_context(_http(gateway))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        made = World(home, bus, stubs, gateway, http, clock, url)
        if ready:
            await until(lambda: gateway.adapters.ready() is None)
        yield made


@asynccontextmanager
async def _http(gateway: Gateway) -> AsyncIterator[str]:
    config = uvicorn.Config(
        create_app(gateway),
        port=0,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    try:
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def events(body: bytes) -> list[Any]:
    """The events of a stream; comments are left out."""
    found = []
    for part in body.decode().split("\n\n"):
        if part.startswith("data: "):
            data = part.removeprefix("data: ")
            found.append(data if data == "[DONE]" else orjson.loads(data))
    return found


def content(stream: list[Any]) -> str:
    """The visible text of a stream's events."""
    return "".join(
        choice["delta"].get("content") or ""
        for event in stream
        if isinstance(event, dict)
        for choice in event.get("choices", ())
    )
