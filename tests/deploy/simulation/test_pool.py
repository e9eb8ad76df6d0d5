"""Simulated users against a real HTTP server: what they send, what they keep to themselves, what is counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.simulation.conduct import Conduct
from deploy.simulation.ledger import Ledger
from deploy.simulation.pool import LIVE_SEEDS, Crowd, UserPool
from deploy.simulation.talk import Talk
from deploy.simulation.world import task
from tests.deploy.simulation.desk_server import DeskServer, listening

SEED = 3
FAST = {"users": 20, "talking": 8, "rating_delay_s": (0.0, 0.05), "very_late_s": 0.1}
CAREFUL = Conduct()
Lines = list[Mapping[str, Any]]


def desk(episodes: int, **how: Any) -> DeskServer:
    return DeskServer(
        [task("train", LIVE_SEEDS + SEED * 1_000_000 + index) for index in range(episodes)], **how
    )


async def played(server: DeskServer, path: Path, crowd: Crowd) -> tuple[UserPool, Lines, Lines]:
    async with listening(server) as base_url:
        talk, ledger = Talk(base_url, "key", model="travel-desk", pause_s=0.005), Ledger(path)
        pool = UserPool(talk, ledger, seed=SEED, crowd=crowd)
        await pool.run()
        await talk.close()
        ledger.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = {kind: [line for line in lines if line["kind"] == kind] for kind in ("episode", "rating")}
    return pool, kinds["episode"], kinds["rating"]


async def test_users_of_a_careful_agent(tmp_path: Path) -> None:
    server = desk(60, refused_ratings=5)
    pool, episodes, ratings = await played(server, tmp_path / "clients.jsonl", Crowd(episodes=60, **FAST))
    counted = pool.counters
    assert (counted.episodes, counted.succeeded, counted.failed) == (60, 60, 0)
    assert counted.requests == len(server.bodies) == sum(len(line["answers"]) for line in episodes)
    assert len(episodes) == 60 and all(line["success"] for line in episodes)
    # Half are rated, a fifth of the thumbs flipped, half of the users say something: 4 sigma around each.
    assert 15 <= counted.rated <= 45
    assert 0 <= counted.flipped <= counted.ratings_sent // 2
    assert counted.reacted >= 15
    assert sum(line["thanks"] for line in episodes) / max(1, counted.reacted) > 0.5
    # Every rating arrives once, the refused ones on a later attempt.
    assert counted.ratings_failed == 0
    assert len(ratings) == counted.ratings_sent == len(server.ratings)
    assert sum(line["attempts"] - 1 for line in ratings) == 5
    assert [line["index"] for line in ratings] != sorted(line["index"] for line in ratings)
    assert sorted(server.ended) == sorted(line["episode_id"] for line in episodes if line["ended"])
    assert server.clashes == 0 and 2 <= server.most_talking <= 8


async def test_nothing_private_is_sent(tmp_path: Path) -> None:
    server = desk(30)
    await played(server, tmp_path / "clients.jsonl", Crowd(episodes=30, **FAST))
    for body in server.bodies:
        assert set(body) <= {"model", "messages", "user", "stream", "episode_id"}
        assert ("episode_id" in body) == (len(body["messages"]) > 1)
        assert body["messages"][-1]["role"] == "user"
    for body in server.ratings:
        assert set(body) == {"response_id", "name", "value", "source"}
        assert body["name"] == "user_rating" and isinstance(body["value"], bool)
        assert body["source"]["type"] == "human"
    assert len({body["stream"] for body in server.bodies}) == 2


async def test_a_careless_agent_is_complained_about_and_rated_down(tmp_path: Path) -> None:
    server = desk(50, manners=Conduct(first_hotel=True))
    _, episodes, ratings = await played(server, tmp_path / "clients.jsonl", Crowd(episodes=50, **FAST))
    wrong = [line for line in episodes if not line["success"]]
    assert 10 <= len(wrong) <= 45
    assert sum(line["complaints"] for line in wrong) > sum(line["thanks"] for line in wrong)
    assert any("hotel" in message["content"] for body in server.bodies for message in body["messages"][1:])
    by_index = {line["index"]: line for line in episodes}
    for rating in ratings:
        episode = by_index[rating["index"]]
        answers = {answer["response_id"]: answer for answer in episode["answers"]}
        rated = answers[rating["response_id"]]
        assert rated["quotes_total"] or not rating["last"]
        assert rated["wrong"] is not None
        assert rating["truth"] == (episode["success"] if rating["last"] else not rated["wrong"])
        assert rating["flipped"] == (rating["truth"] != rating["value"])
        last = [answer for answer in episode["answers"] if answer["quotes_total"]][-1]
        assert rating["last"] == (rated is last)


@pytest.mark.parametrize("trouble", [{"failing": 7}, {"cut_streams": True}])
async def test_failures_are_counted_and_never_rated(tmp_path: Path, trouble: dict[str, Any]) -> None:
    crowd = Crowd(episodes=20, **{**FAST, "talking": 20})
    pool, episodes, ratings = await played(desk(20, **trouble), tmp_path / "clients.jsonl", crowd)
    failed = {line["index"] for line in episodes if line["failure"]}
    assert len(episodes) == 20 and 0 < len(failed) == pool.counters.failed
    assert all(line["success"] is None for line in episodes if line["index"] in failed)
    assert not failed & {line["index"] for line in ratings}


async def test_a_stopped_pool_keeps_its_promises(tmp_path: Path) -> None:
    server = desk(500)
    crowd = Crowd(**{**FAST, "rating_delay_s": (30.0, 60.0)})  # far later than this test may take
    async with listening(server) as base_url:
        talk, ledger = Talk(base_url, "key", model="travel-desk"), Ledger(tmp_path / "clients.jsonl")
        pool = UserPool(talk, ledger, seed=SEED, crowd=crowd)
        server.on_chat = lambda: pool.stop.set() if len(server.bodies) >= 60 else None
        await pool.run()
        await talk.close()
        ledger.close()
    lines = [json.loads(line) for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    rated = [line for line in lines if line["kind"] == "episode" and line["rated"]]
    assert rated
    assert {line["index"] for line in rated} == {line["index"] for line in lines if line["kind"] == "rating"}
    assert pool.counters.begun == pool.counters.episodes < 200
