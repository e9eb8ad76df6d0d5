"""One vLLM server, spoken to by token ids: ids in; ids and their log-probabilities out, as they are sampled.

Leaving the generator early closes the connection, and that is what aborts the engine's request.
"""

import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from serving.sse import DONE, EventParser

LOWEST_LOGPROB = -9999.0  # stands for -inf, which JSON does not have


class EngineError(Exception):
    """The engine cannot answer this; the text is for the client and holds no internals."""


class EngineDown(EngineError):
    """Nobody answers, or it fails before the first token: another replica or a later try may work."""


class EngineSlow(EngineDown):
    """It is there and did not answer in time: it may only be busy."""


class EngineBusy(EngineError):
    """It asks us to come back later."""


class EngineRefused(EngineError):
    """It read the request and will never take it."""


class VersionMissing(EngineError):
    """It does not have the adapter: it was restarted, or never loaded it."""


class EngineBroken(EngineError):
    """It began to answer and failed, or its answer is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one event of the stream added."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str | None = None
    top: tuple[dict[int, float], ...] = ()  # for each id, the most probable ones, where asked for


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of the engine's `/v1/models`; `parent` is None for a base model."""

    name: str
    root: str | None
    parent: str | None


class Engine:
    """A replica. The session is shared and belongs to whoever made it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, stall_s: float = 120.0) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._stream_timeout = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=stall_s)
        self._short_timeout = aiohttp.ClientTimeout(total=5.0, sock_connect=2.0)
        self._load_timeout = aiohttp.ClientTimeout(total=300.0, sock_connect=2.0)

    async def sample(
        self, prompt_ids: Sequence[int], *, model: str, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]:
        """Sample one turn; `params` may ask for `logprobs: n`.

        A stream that breaks before its first item is EngineDown, since another replica may do it; after that EngineBroken.
        """
        top = int(params.get("logprobs", 0))
        body = {
            "prompt": prompt_ids,
            "model": model,
            "stream": True,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "return_tokens_as_token_ids": top > 0,
            **params,
        }
        begun = False
        try:
            async with await self._post_stream(orjson.dumps(body)) as response:
                if response.status != 200:
                    raise await _refusal(response)
                parser, finished = EventParser(), False
                async for piece in response.content.iter_any():
                    for data in parser.feed(piece):
                        if data == DONE or finished:
                            continue
                        sampled = read_event(data, prompt_ids, model, top=top)
                        if sampled is not None:
                            finished, begun = sampled.finish is not None, True
                            yield sampled
                if not finished:
                    raise (EngineBroken if begun else EngineDown)("the engine's stream ended in the middle")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise (EngineBroken if begun else EngineDown)("the engine's stream broke off") from error

    async def _post_stream(self, data: bytes) -> aiohttp.ClientResponse:
        """Begin a completion. A kept connection that the server had just closed is tried once more, on a new one."""
        kept = True
        while True:
            try:
                return await self._session.post(
                    f"{self.url}/v1/completions",
                    data=data,
                    headers={"Content-Type": "application/json"},
                    timeout=self._stream_timeout,
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                raise EngineDown("the engine cannot be reached") from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not kept:
                    raise EngineDown("the engine closed the connection") from error
                kept = False

    async def score(self, prompt_ids: Sequence[int], *, model: str) -> list[float]:
        """Log-probability at T = 1 of each id from index 1 on."""
        body = {
            "prompt": list(prompt_ids),
            "model": model,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        answer = await self._post("/v1/completions", body, timeout=self._load_timeout)
        try:
            if answer["model"] != model:
                raise EngineBroken(f"asked for {model}, answered by {str(answer['model'])[:80]}")
            found = answer["choices"][0]["prompt_logprobs"]
            return [
                float(entry[str(token)]["logprob"])
                for token, entry in zip(prompt_ids[1:], found[1:], strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineBroken("the engine returned no prompt_logprobs") from error

    async def models(self) -> list[Card]:
        """What the engine says it serves."""
        answer = await self._request("GET", "/v1/models", timeout=self._short_timeout)
        try:
            return [Card(card["id"], card.get("root"), card.get("parent")) for card in answer["data"]]
        except (KeyError, TypeError) as error:
            raise EngineBroken("the engine's list of models is unreadable") from error

    async def load(self, name: str, path: str) -> None:
        """Load an adapter under a name that was never used for other bytes."""
        body = {"lora_name": name, "lora_path": path}
        await self._post("/v1/load_lora_adapter", body, timeout=self._load_timeout)

    async def unload(self, name: str) -> None:
        """Forget a name; the engine frees its memory when it needs it."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=self._short_timeout)

    async def slots(self) -> int | None:
        """`max_loras`, where the engine's metrics tell it."""
        try:
            async with self._session.get(f"{self.url}/metrics", timeout=self._short_timeout) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return None
        for line in text.splitlines():
            if line.startswith("vllm:lora_requests_info{") and 'max_lora="' in line:
                value = line.partition('max_lora="')[2].partition('"')[0]
                return int(value) if value.isdigit() and value != "0" else None
        return None

    async def _post(self, path: str, body: Mapping[str, Any], *, timeout: aiohttp.ClientTimeout) -> Any:
        return await self._request("POST", path, timeout=timeout, body=body)

    async def _request(
        self, method: str, path: str, *, timeout: aiohttp.ClientTimeout, body: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            async with self._session.request(
                method, f"{self.url}{path}", json=body, timeout=timeout
            ) as response:
                if response.status != 200:
                    raise await _refusal(response)
                text = await response.text()
        except TimeoutError as error:
            raise EngineSlow("the engine does not answer in time") from error
        except aiohttp.ClientError as error:
            raise EngineDown("the engine cannot be reached") from error
        try:
            return json.loads(text)
        except ValueError:
            return text


def read_event(data: bytes, prompt_ids: Sequence[int], model: str, *, top: int = 0) -> Sampled | None:
    """One event of the stream; None when it adds nothing. Raises EngineBroken for a lie."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        chunk = _loose_json(data)
    if "error" in chunk:
        raise EngineBroken("the engine failed while it answered")
    if chunk.get("model") != model:
        raise EngineBroken(f"asked for {model}, answered by {str(chunk.get('model'))[:80]}")
    if not chunk.get("choices"):
        return None
    choice = chunk["choices"][0]
    seen = choice.get("prompt_token_ids")
    if seen is not None and seen != list(prompt_ids):
        raise EngineBroken("the engine saw another prompt than it was given")
    ids = choice.get("token_ids")
    if ids is None:
        raise EngineBroken("the engine returns no token ids: it must support return_token_ids")
    logprobs = choice.get("logprobs") or {}
    found = [_finite(value) for value in logprobs.get("token_logprobs") or []]
    others = tuple(_best(entry, top) for entry in logprobs.get("top_logprobs") or ()) if top else ()
    return Sampled(ids, found, choice.get("finish_reason"), others)


def _best(entry: dict[str, float | None] | None, count: int) -> dict[int, float]:
    """The `count` most probable ids of `{"token_id:7": -0.1, …}`; the engine adds the sampled one to them."""
    values = {
        int(name.removeprefix("token_id:")): LOWEST_LOGPROB if value is None or math.isnan(value) else value
        for name, value in (entry or {}).items()
        if name.removeprefix("token_id:").isdigit()
    }
    return dict(sorted(values.items(), key=lambda each: -each[1])[:count])


def _finite(value: float | None) -> float:
    """Kept as NaN where it is not a number: the record flags the turn."""
    if value is None:
        return math.nan
    return value if math.isfinite(value) or math.isnan(value) else math.nan


def _loose_json(data: bytes) -> Any:
    """NaN and Infinity are not JSON, but engines write them."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise EngineBroken("the engine sent an event that is not JSON") from error


async def _refusal(response: aiohttp.ClientResponse) -> EngineError:
    """The engine's status as one of our errors."""
    try:
        text = str(json.loads(await response.text())["error"]["message"])[:300]
    except (TimeoutError, ValueError, KeyError, TypeError, aiohttp.ClientError):
        text = "no reason given"
    if response.status == 404:
        return VersionMissing(text)
    if response.status == 429:
        return EngineBusy("the engine is overloaded")
    if response.status in (502, 503, 504):
        return EngineDown("the engine is overloaded or starting")
    if response.status < 500:
        return EngineRefused(text)
    return EngineBroken(f"the engine failed with status {response.status}")
