"""What the bus tells the gateway: the newest split and credits of its own agent; what cannot be read is a dead letter, once."""

import base64
from pathlib import Path

import orjson
import pytest

from feedback.bus import MemoryBus
from feedback.schemas import (
    CREDITS,
    DEAD_LETTERS,
    TRAFFIC_SPLITS,
    AdapterRef,
    Credit,
    DeadLetter,
    TrafficSplit,
    TurnCredit,
)
from serving.tables import CREDITS as CREDIT_ROWS
from tests.serving.harness import AGENT, BASE, until, world


def split(version: str, *, generation: int = 5) -> bytes:
    champion = AdapterRef(version="travel-desk-000007", uri="models:/m-1", digest="sha256:" + "0" * 64)
    message = TrafficSplit(agent=AGENT, generation=generation, champion=champion, at=1)
    return message.to_bytes().replace(b"travel-desk-000007", version.encode())


@pytest.mark.parametrize(
    ("topic", "value", "reason"),
    [
        (TRAFFIC_SPLITS, b"{", "value"),
        (TRAFFIC_SPLITS, split("the-newest-one"), "version"),
        (TRAFFIC_SPLITS, split("other-desk-000001"), "other-desk-000001"),
        (CREDITS, b"not json", "value"),
    ],
)
async def test_what_cannot_be_read_is_a_dead_letter_once(
    tmp_path: Path, topic: str, value: bytes, reason: str
) -> None:
    bus = MemoryBus()
    bus.send(topic, "key", value)
    bus.flush(1)
    async with world(tmp_path, bus=bus) as here:
        await here.in_force(here.publish())  # its neighbours are unaffected
        await until(lambda: here.records(DEAD_LETTERS))
        (record,) = here.records(DEAD_LETTERS)
        letter = DeadLetter.from_bytes(record.value)
        assert (letter.topic, base64.b64decode(letter.value_base64 or "")) == (topic, value)
        assert reason in letter.reason
    async with world(tmp_path, bus=bus) as again:  # splits are read from the earliest again
        again.generation = 1
        await again.in_force(again.publish())
        assert len(again.records(DEAD_LETTERS)) == 1


async def test_credits_of_another_agent_are_not_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for agent in ("other-desk", AGENT):
            turn = TurnCredit(response_id="chatcmpl-1", turn=0, advantage=0.5)
            credit = Credit(agent=agent, episode_id="ep_1", revision=1, update_id=agent, turns=(turn,), at=1)
            here.bus.send(CREDITS, "ep_1", credit.to_bytes())
        here.bus.flush(1)

        async def kept() -> list[str]:
            job = here.gateway.writer.write(lambda conn: conn.execute(CREDIT_ROWS.select()).all())
            return [orjson.loads(row.value)["agent"] for row in await job]

        while not (found := await kept()):
            pass
        assert found == [AGENT]


async def test_topics_of_another_kind_are_shown_and_never_in_the_way_of_chat(tmp_path: Path) -> None:
    async with world(tmp_path, settings={"partitions": 3}) as here:
        await until(lambda: here.gateway.news.problem)
        shown = (await here.http.get("/readyz")).json()
        assert shown["status"] == "ready" and "partitions" in shown["bus"]
        assert (await here.answer("Hi"))["agent"]["adapter"] == BASE
