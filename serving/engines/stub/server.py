"""A vLLM server without a model: scripted replies by token ids, and adapters with a slot ledger.

Invariant it checks for its caller: one adapter name is never bound to two paths (`violations`).
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from tokenizers import Tokenizer

from serving.engines.stub.script import END, Reply, Script


@dataclass(slots=True)
class Seen:
    """One completion as the engine met it."""

    model: str
    prompt: list[int]
    params: dict[str, Any]
    at: float
    sent: int = 0
    finished: bool = False
    aborted_at: float | None = None


@dataclass(slots=True)
class StubEngine:
    """State of one stub; `app()` serves it. Everything may be changed while it runs."""

    base: str
    tokenizer: Tokenizer
    script: Script
    max_loras: int = 5
    adapters: dict[str, str] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)  # every name ever loaded -> its path
    violations: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    loads: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    load_status: int | None = None
    load_s: float = 0.0
    inert: bool = False  # adapters are accepted and have no effect
    raw_logprobs: bool = False  # started without --logprobs-mode processed_logprobs
    models_s: float = 0.0  # before it lists its models
    hang_up_once: bool = False  # the next completion meets a closed connection
    most_loaded: int = 0

    def app(self) -> web.Application:
        """The HTTP server."""
        app = web.Application(client_max_size=64 * 2**20, middlewares=[self._gate])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/load_lora_adapter", self._load),
                web.post("/v1/unload_lora_adapter", self._unload),
                web.post("/v1/completions", self._completions),
            ]
        )
        return app

    def restart(self) -> None:
        """Come back empty, as a restarted server does."""
        self.adapters.clear()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.down:
            raise web.HTTPServiceUnavailable()
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        running = ",".join(sorted(self.adapters))
        line = f'vllm:lora_requests_info{{max_lora="{self.max_loras}",running_lora_adapters="{running}"}}'
        return web.Response(text=f"{line} {time.time()}\n")

    async def _models(self, _: web.Request) -> web.Response:
        await asyncio.sleep(self.models_s)
        cards = [{"id": self.base, "object": "model", "root": "/model", "parent": None}]
        cards += [
            {"id": name, "object": "model", "root": path, "parent": self.base}
            for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        await asyncio.sleep(self.load_s)
        if self.load_status is not None:
            return _error(self.load_status, "scripted failure")
        if body.get("load_inplace"):
            self.violations.append(f"{name}: load_inplace")
        if self.bound.setdefault(name, path) != path:
            self.violations.append(f"{name}: bound to {self.bound[name]} and to {path}")
        if name == self.base or name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(path) / "adapter_config.json").exists():
            return _error(404, f"No adapter found for {name}")
        self.adapters[name] = path
        self.loads.append((name, path))
        self.most_loaded = max(self.most_loaded, len(self.adapters))
        if len(self.adapters) > self.max_loras:
            self.violations.append(f"{len(self.adapters)} adapters in {self.max_loras} slots")
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        running = [
            seen for seen in self.seen if seen.model == name and not seen.finished and not seen.aborted_at
        ]
        if running:
            self.violations.append(f"{name}: unloaded under {len(running)} running requests")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if self.hang_up_once:
            self.hang_up_once = False
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        model, prompt = body["model"], list(body["prompt"])
        if model != self.base and model not in self.adapters:
            return _error(404, f"The model `{model}` does not exist.")
        if body.get("prompt_logprobs") is not None:
            return web.json_response(self._scored(model, prompt))
        params = {key: value for key, value in body.items() if key not in ("prompt", "model")}
        seen = Seen(model, prompt, params, time.monotonic())
        self.seen.append(seen)
        reply = self.script(model, prompt)
        if reply.status is not None:
            seen.finished = True
            return _error(reply.status, "scripted failure")
        try:
            return await self._stream(request, reply, seen)
        except (asyncio.CancelledError, ConnectionError):
            seen.aborted_at = time.monotonic()
            raise

    async def _stream(self, request: web.Request, reply: Reply, seen: Seen) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(reply.first_s)
        events = self._events(reply, seen)
        if reply.cuts:
            await _write_cut(response, b"".join(events), reply.cuts)
            events = []
        for number, data in enumerate(events):
            if number == reply.break_after:
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError
            if number == reply.stall_after:
                await asyncio.sleep(3600)
            if reply.each_s:
                await asyncio.sleep(reply.each_s)
            await response.write(data)
            seen.sent += 1
        seen.finished = True
        await response.write_eof()
        return response

    def _events(self, reply: Reply, seen: Seen) -> list[bytes]:
        ids, finish = self._ids(reply, seen.params.get("max_tokens", 16))
        size = max(1, reply.chunk)
        events = []
        for start in range(0, max(1, len(ids)), size):
            part = ids[start : start + size]
            last = start + size >= len(ids)
            events.append(
                _event(self._chunk(reply, seen, part, first=start == 0, finish=finish if last else None))
            )
        if reply.error_after is not None:
            events[reply.error_after :] = [_event({"error": {"message": "scripted", "code": 500}})]
        return [*events, b"data: [DONE]\n\n"]

    def _chunk(
        self, reply: Reply, seen: Seen, part: Sequence[int], *, first: bool, finish: str | None
    ) -> dict[str, Any]:
        temperature = seen.params.get("temperature", 1.0)
        logprobs: list[float | None] = [self.logprob(seen.model, token, temperature) for token in part]
        match reply.lie:
            case "short_logprobs" if finish:
                logprobs = logprobs[:-1]
            case "null_logprob" if finish:
                logprobs[-1:] = [None]
            case "nan_logprob" if finish:
                logprobs[-1:] = [float("nan")]
            case "abort" if finish:
                finish = "abort"
        scores: dict[str, Any] = {"token_logprobs": logprobs}
        if (count := seen.params.get("logprobs", 0)) > 0:
            scores["top_logprobs"] = [self._top(reply, seen, token, count) for token in part]
        choice: dict[str, Any] = {
            "index": 0,
            "text": self.tokenizer.decode(list(part)),
            "logprobs": scores,
            "finish_reason": finish,
            "token_ids": list(part),
        }
        if first:
            choice["prompt_token_ids"] = [*seen.prompt, 0] if reply.lie == "other_prompt" else seen.prompt
        if reply.lie == "no_ids":
            del choice["token_ids"]
        model = "something-else" if reply.lie == "other_model" else seen.model
        return {"id": "cmpl-stub", "object": "text_completion", "model": model, "choices": [choice]}

    def _top(self, reply: Reply, seen: Seen, token: int, count: int) -> dict[str, float]:
        """The sampled token first, then its neighbours, each less probable, by id as vLLM names them on demand."""
        best = self.logprob(seen.model, token, seen.params.get("temperature", 1.0))
        assert seen.params.get("return_tokens_as_token_ids")
        size = self.tokenizer.get_vocab_size()
        found = {f"token_id:{(token + step) % size}": best - step for step in range(count + 1)}
        if reply.lie == "infinite_top":
            found[f"token_id:{(token + 1) % size}"] = float("-inf")
        return found

    def logprob(self, model: str, token: int, temperature: float) -> float:
        """A made-up but repeatable number; processed mode sharpens it with a low temperature."""
        value = -0.05 - (token * 31 + len(model)) % 17 / 20
        return value if self.raw_logprobs else value * min(1.0, temperature)

    def _ids(self, reply: Reply, max_tokens: int) -> tuple[list[int], str]:
        ids = list(reply.ids) if reply.ids is not None else list(self.tokenizer.encode(reply.text).ids)
        if reply.ids is None and not reply.open:
            end = self.tokenizer.token_to_id(END)
            ids += [] if end is None else [end]
        if len(ids) > max_tokens:
            return ids[:max_tokens], "length"
        return ids, "stop"

    def _scored(self, model: str, prompt: list[int]) -> dict[str, Any]:
        """`prompt_logprobs`: what the loaded adapter's own probe says, so that an honest load passes."""
        values = self._probed(model, prompt)
        entries: list[Any] = [None]
        entries += [
            {str(token): {"logprob": value, "rank": 1, "decoded_token": ""}}
            for token, value in zip(prompt[1:], values, strict=True)
        ]
        return {"model": model, "choices": [{"index": 0, "text": "", "prompt_logprobs": entries}]}

    def _probed(self, model: str, prompt: list[int]) -> list[float]:
        kind = "base_logprobs" if model == self.base or self.inert else "logprobs"
        paths = [self.adapters[model]] if model in self.adapters else list(self.adapters.values())
        for path in paths:
            probe = Path(path) / "probe.json"
            if probe.exists():
                found = json.loads(probe.read_text())
                if prompt in found["prompts"]:
                    values: list[float] = found[kind][found["prompts"].index(prompt)]
                    return values
        return [self.logprob(self.base, token, 1.0) for token in prompt[1:]]


async def start_stub(
    stub: StubEngine, *, port: int = 0, host: str = "127.0.0.1"
) -> tuple[web.AppRunner, str]:
    """Serve it; returns the runner (`await runner.cleanup()` ends it) and the address."""
    runner = web.AppRunner(stub.app(), handler_cancellation=True, shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    bound = runner.addresses[0][1]
    return runner, f"http://{host}:{bound}"


async def _write_cut(response: web.StreamResponse, body: bytes, cuts: Sequence[int]) -> None:
    edges = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    for start, end in pairwise(edges):
        if end > start:
            await response.write(body[start:end])
            await asyncio.sleep(0)


def _event(value: dict[str, Any]) -> bytes:
    """Python's JSON: it writes NaN, as engines do."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _error(status: int, message: str) -> web.Response:
    body = {"error": {"message": message, "type": "StubError", "param": None, "code": status}}
    return web.json_response(body, status=status)
