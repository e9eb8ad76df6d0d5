"""Whether the engines' base model is the trainer's: the same ids, and log-probabilities no further apart than rounding."""

import asyncio
from collections.abc import Iterable

import aiohttp

from feedback.probe import ROUNDS, Probe, distance
from serving.engines.engine import Engine, EngineDown, EngineError


class ParityError(RuntimeError):
    """An engine serves another model than the trainer trains; the text names the engine and the distance."""


def check_engines(urls: Iterable[str], *, base_version: str, start: Probe) -> dict[str, float]:
    """Mean |difference| in nats by engine that answers, on the trainer's own probe. Raises ParityError."""
    return asyncio.run(_check(tuple(urls), base_version, start))


async def _check(urls: Iterable[str], base_version: str, start: Probe) -> dict[str, float]:
    apart = {}
    async with aiohttp.ClientSession() as session:
        for url in urls:
            engine = Engine(url, session)
            try:
                found = [await engine.score(prompt, model=base_version) for prompt in start.prompts]
            except EngineDown:
                continue  # the gateway waits for it and looks before it routes
            except EngineError as error:
                raise ParityError(f"engine {url} cannot be held against the trainer: {error}") from error
            apart[url] = distance(found, start.base_logprobs)
            if not apart[url] <= ROUNDS:
                raise ParityError(
                    f"engine {url} serves another model than the trainer trains: log-probabilities are "
                    f"{apart[url]:.3f} apart; start it with the agent file's model.path"
                )
    return apart
