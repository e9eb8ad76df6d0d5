"""Once round on real Kafka, MLflow and vLLM: what users say becomes a version, and the engine answers as the trainer says.

It runs last: from then on a candidate answers some of the conversations of this stack.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from deploy.calls import call
from deploy.simulation.ledger import Ledger
from deploy.simulation.pool import Crowd, UserPool
from deploy.simulation.talk import Talk
from feedback.bus import read_to_the_end
from feedback.manifest import verify
from feedback.probe import disagreement, distance, read_probe
from feedback.schemas import EXPERIENCES, UPDATES, Decision, Experience, Update
from online_trainer.registry import Registry
from serving.engines.engine import Engine
from tests.end_to_end.conftest import LiveStack

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.timeout(1200),
    # kafka-python leaves the sockets of refused connections to the collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@dataclass(frozen=True)
class Lesson:
    """What came of the users' talk: the offered update and its canary."""

    update: Update
    canary: dict[str, Any]


@pytest.fixture(scope="module")
def lesson(live_stack: LiveStack, tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    clients = tmp_path_factory.mktemp("users") / "clients.jsonl"
    canary = asyncio.run(teach(live_stack, clients, within_s=600))
    return Lesson(next(u for u in updates(live_stack) if u.version == canary["version"]), canary)


async def teach(stack: LiveStack, clients: Path, *, within_s: float) -> dict[str, Any]:
    """Users talk and rate until a canary tries what was learned from them."""
    talk = Talk(f"{stack.address('SERVING_PORT')}/v1", stack.key, model="travel-desk")
    ledger = Ledger(clients)
    pool = UserPool(talk, ledger, seed=11, crowd=Crowd(users=120, talking=12))
    talking = asyncio.create_task(pool.run())
    try:
        async with asyncio.timeout(within_s):
            while (canary := (await status(stack)).get("canary")) is None:
                assert not talking.done(), "the users left"
                await asyncio.sleep(1.0)
    except TimeoutError:
        pytest.fail(f"nothing was offered; {pool.counters}\n{stack.logs()}")
    finally:
        pool.stop.set()
        await talking
        await talk.close()
        ledger.close()
    assert pool.counters.failed == 0
    return dict(canary)


async def status(stack: LiveStack) -> dict[str, Any]:
    answer: dict[str, Any] = await asyncio.to_thread(
        call, "GET", f"{stack.address('DEPLOY_PORT')}/v1/status", key=stack.key
    )
    return answer


def read(stack: LiveStack, topic: str) -> list[bytes]:
    """Every value of a topic."""
    bus, values = stack.bus(), list[bytes]()
    reader = bus.reader([topic])
    try:
        reader.seek({})
        read_to_the_end(
            reader, lambda records: values.extend(r.value for r in records if r.value), silence_s=30
        )
    finally:
        reader.close()
        bus.close()
    return values


def updates(stack: LiveStack) -> list[Update]:
    return [Update.from_bytes(value) for value in read(stack, UPDATES)]


def test_the_update_learned_from_episodes_that_users_rated(live_stack: LiveStack, lesson: Lesson) -> None:
    experiences = [Experience.from_bytes(value) for value in read(live_stack, EXPERIENCES)]
    rated = {each.episode_id for each in experiences if each.ratings}
    update = lesson.update
    assert update.decision in (Decision.ACCEPTED, Decision.SHRUNK)
    assert set(update.episode_ids) <= {each.episode_id for each in experiences}
    assert len(set(update.episode_ids) & rated) >= 8
    assert 0 < update.measures["k3_old"] < 0.02


def test_the_version_in_mlflow_is_the_bytes_of_the_update(
    live_stack: LiveStack, lesson: Lesson, tmp_path: Path
) -> None:
    address = live_stack.address("DEPLOY_MLFLOW_PORT")
    registry = Registry(address, "travel-desk", timeout_s=30.0)
    assert lesson.update.digest is not None
    known = registry.find_digest(lesson.update.digest)
    assert known is not None and known.version == lesson.update.version
    folder = registry.download(known.uri, lesson.update.digest, into=tmp_path / "adapter")
    assert verify(folder) == lesson.update.digest


def test_the_candidate_answers_and_the_champion_does_not_change(
    live_stack: LiveStack, lesson: Lesson
) -> None:
    def answered_by(arm: str) -> str:
        response = httpx.post(
            f"{live_stack.address('SERVING_PORT')}/v1/chat/completions",
            headers={"Authorization": f"Bearer {live_stack.key}", "X-Adapter-Arm": arm},
            json={"model": "travel-desk", "messages": [{"role": "user", "content": "A flight to Rome."}]},
            timeout=300,
        )
        assert response.status_code == 200, response.text
        return response.headers["X-Adapter-Version"]

    assert answered_by("candidate") == lesson.update.version
    assert answered_by("champion") == "travel-desk-000000"


def test_the_engine_says_of_the_adapter_what_the_trainer_says(live_stack: LiveStack, lesson: Lesson) -> None:
    """On the probe: closer to the trainer's adapter than to the base, as the trainer's own effect is."""
    version = lesson.update.version or ""
    (folder,) = (live_stack.home / "adapters").glob(f"{version}-*")
    probe = read_probe(folder)

    async def scores() -> tuple[list[list[float]], list[list[float]]]:
        async with aiohttp.ClientSession() as session:
            engine = Engine(live_stack.address("DEPLOY_ENGINE_PORT"), session)
            cards = {card.name: card.root for card in await engine.models()}
            assert cards[version] == str(folder)
            found = [await engine.score(prompt, model=version) for prompt in probe.prompts]
            return found, [await engine.score(prompt, model="travel-desk-000000") for prompt in probe.prompts]

    found, base = asyncio.run(scores())
    assert disagreement(probe, found=found, base=base) is None
    assert distance(found, probe.logprobs) < distance(found, base)
