"""An engine that serves another base model than the trainer's ends `up` before a user meets it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from deploy.stack.parity import ParityError, check_engines
from feedback.probe import Probe
from serving.engines.stub.script import cycle
from serving.engines.stub.server import StubEngine, start_stub
from tests.serving.tiny import tiny_tokenizer

BASE = "travel-desk-000000"
PROMPTS = ((1, 2, 3, 4), (5, 6, 7))


@pytest.fixture
def stub() -> Iterator[tuple[StubEngine, str]]:
    made, loop = StubEngine(BASE, tiny_tokenizer(), cycle([])), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner, url = asyncio.run_coroutine_threadsafe(start_stub(made), loop).result(10)
    yield made, url
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def start_of(stub: StubEngine, *, off: float = 0.0) -> Probe:
    rows = tuple(tuple(stub.logprob(BASE, token, 1.0) + off for token in prompt[1:]) for prompt in PROMPTS)
    return Probe(prompts=PROMPTS, logprobs=rows, base_logprobs=rows)


def test_the_same_model_passes_and_its_distance_is_told(stub: tuple[StubEngine, str]) -> None:
    engine, url = stub
    apart = check_engines([url], base_version=BASE, start=start_of(engine, off=0.07))
    assert apart == {url: pytest.approx(0.07)}


def test_another_model_is_named_with_its_distance(stub: tuple[StubEngine, str]) -> None:
    engine, url = stub
    with pytest.raises(ParityError, match=f"{url} serves another model .* 0.300 apart"):
        check_engines([url], base_version=BASE, start=start_of(engine, off=0.3))


def test_an_engine_without_the_base_is_named(stub: tuple[StubEngine, str]) -> None:
    engine, url = stub
    with pytest.raises(ParityError, match="cannot be held against the trainer"):
        check_engines([url], base_version="travel-desk-000009", start=start_of(engine))


def test_an_engine_that_is_away_is_left_to_the_gateway(stub: tuple[StubEngine, str]) -> None:
    """Chat waits for it, and nothing is routed to it before it was seen: it never stops `up`."""
    engine, url = stub
    start = start_of(engine)
    away = "http://127.0.0.1:1"
    assert check_engines([away, url], base_version=BASE, start=start) == {url: pytest.approx(0.0)}
