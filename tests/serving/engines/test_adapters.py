"""Adapters on one and two engines: checked before they are routed, never rebound, held by leases, refilled after a restart."""

import asyncio
import json
import math
import shutil
from pathlib import Path

import pytest

from feedback.manifest import PROBE, WEIGHTS
from feedback.schemas import AdapterRef
from serving.engines.stub.script import Reply
from tests.serving.harness import BASE, scripted, until, world, write_adapter

SLOW = Reply("one two three four five six", each_s=0.02)


def named(number: int) -> str:
    return f"travel-desk-{number:06d}"


async def test_a_split_takes_effect_once_its_versions_are_loaded_and_probed(tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "made", named(1))
    async with world(tmp_path) as here:
        assert (await here.answer("Hi"))["agent"]["adapter"] == BASE
        here.stub.load_s = 0.3
        split = here.publish(champion=one)
        await until(lambda: here.gateway.adapters.wanted.generation == 1)
        assert (await here.answer("Hi"))["agent"]["adapter"] == BASE
        await here.in_force(split)
        assert (await here.answer("Hi"))["agent"]["adapter"] == one.version
        (record,) = [each for each in await here.interactions(3) if each.adapter_version == one.version]
        assert record.turns[0].adapter_version == one.version and here.stub.seen[-1].model == one.version
        models = (
            await here.http.get("/v1/models/travel-desk", headers={"Authorization": "Bearer secret-app"})
        ).json()
        assert models["ratchet"]["champion"] == one.version
        assert here.stub.violations == []


async def test_swaps_under_load_fail_and_mix_nothing(tmp_path: Path) -> None:
    """Publish again and again under eight clients that use tools: no failure, one version a reply, slots suffice."""
    script = scripted(
        {"Fly": [Reply("<tool_call>flights(Lima)</tool_call>", chunk=8), Reply("Done.", each_s=0.01)]}
    )
    refs = [write_adapter(tmp_path / "made", named(number)) for number in range(1, 9)]
    async with world(tmp_path, script=script) as here:
        stop = asyncio.Event()

        async def client() -> list[int]:
            statuses = []
            while not stop.is_set():
                statuses.append((await here.chat("Fly")).status_code)
            return statuses

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for ref in refs:
            await here.in_force(here.publish(champion=ref))
        stop.set()
        statuses = [status for each in await asyncio.gather(*clients) for status in each]
        assert set(statuses) == {200}
        for record in await here.interactions(len(statuses)):
            assert {turn.adapter_version for turn in record.turns} == {record.adapter_version}
        assert here.stub.violations == []
        assert here.stub.most_loaded <= here.stub.max_loras


async def test_a_running_reply_keeps_its_version_across_a_publish(tmp_path: Path) -> None:
    refs = [write_adapter(tmp_path / "made", named(number)) for number in (1, 2)]
    script = scripted({"Fly": [Reply("<tool_call>flights(Lima)</tool_call>", each_s=0.05), SLOW]})
    async with world(tmp_path, script=script) as here:
        await here.in_force(here.publish(champion=refs[0]))
        running = asyncio.create_task(here.answer("Fly"))
        await until(lambda: here.gateway.adapters.in_flight() == 1)
        await here.in_force(here.publish(champion=refs[1]))
        assert not running.done()
        assert (await running)["agent"]["adapter"] == refs[0].version
        assert (await here.answer("Hi"))["agent"]["adapter"] == refs[1].version
        assert here.stub.violations == []


@pytest.mark.parametrize(
    "fault", ["inert", "far", "no_probe", "base_name", "other_path", "digest", "truncated"]
)
async def test_a_bad_adapter_is_refused_and_the_champion_stays(tmp_path: Path, fault: str) -> None:
    made = tmp_path / "made"
    bad = write_adapter(made, named(1), shift=0.0 if fault == "inert" else 0.05)
    folder = made / named(1)
    async with world(tmp_path) as here:
        match fault:
            case "inert":
                here.stub.inert = True
            case "far":
                here.stub.inert = True  # answers as the base does, .05 from what the trainer says
            case "no_probe":
                (folder / PROBE).unlink()
                shutil.rmtree(folder)
                bad = write_adapter_without_probe(made, named(1))
            case "base_name":
                here.stub.adapters[named(1)] = "/elsewhere"
            case "other_path":
                here.stub.adapters[named(1)] = str(folder)
            case "digest":
                bad = bad.model_copy(update={"digest": "sha256:" + "0" * 64})
            case "truncated":
                (folder / WEIGHTS).write_bytes(b"tra")
        here.publish(candidate=bad, share=1.0, salt="s", canary_id="cn_1")
        await until(lambda: bad.version in here.gateway.adapters.replicas[0].refused)
        await until(lambda: here.gateway.adapters.split and here.gateway.adapters.split.generation == 1)
        body = await here.answer("Hi")
        assert (body["agent"]["adapter"], body["agent"]["arm"]) == (BASE, "champion")
        metrics = (await here.http.get("/metrics")).text
        assert f'ratchet_adapter_info{{state="refused",version="{bad.version}"}} 1.0' in metrics


@pytest.mark.parametrize("lora_b", [0.0, math.nan, math.inf])
async def test_weights_that_do_nothing_or_are_no_numbers_never_reach_an_engine(
    tmp_path: Path, lora_b: float
) -> None:
    bad = write_adapter(tmp_path / "made", named(1), lora_b=lora_b)
    async with world(tmp_path) as here:
        here.publish(candidate=bad, share=1.0, salt="s", canary_id="cn_1")
        await until(lambda: bad.version in here.gateway.adapters.replicas[0].refused)
        assert here.stub.loads == []
        assert (await here.answer("Hi"))["agent"]["adapter"] == BASE


def write_adapter_without_probe(made: Path, version: str) -> AdapterRef:
    from feedback.manifest import MANIFEST, seal

    ref = write_adapter(made, version)
    folder = made / version
    (folder / PROBE).unlink()
    (folder / MANIFEST).unlink()
    return ref.model_copy(update={"digest": seal(folder)})


async def test_an_engine_that_serves_its_base_under_another_name_gets_no_traffic(tmp_path: Path) -> None:
    async with world(tmp_path, ready=False) as here:
        here.stub.base = "something-else"
        here.gateway.adapters.replicas[0].down("restarted")
        await until(lambda: "--served-model-name" in (here.gateway.adapters.ready() or ""))
        assert (await here.chat("Hi")).status_code == 503


async def test_two_replicas_only_those_that_have_the_version_are_used(tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "made", named(1))
    async with world(tmp_path, engines=2) as here:
        await until(lambda: all(not replica.problem for replica in here.gateway.adapters.replicas))
        here.stubs[1].load_status = 500
        await here.in_force(here.publish(champion=one))
        for _ in range(6):
            assert (await here.answer("Hi"))["agent"]["adapter"] == one.version
        assert all(seen.model == BASE for seen in here.stubs[1].seen)
        here.stubs[1].load_status = None
        await until(lambda: one.version in here.gateway.adapters.replicas[1].routable)


async def test_a_restarted_engine_is_refilled_before_it_gets_traffic(tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "made", named(1))
    async with world(tmp_path, engines=2) as here:
        await here.in_force(here.publish(champion=one))
        await until(
            lambda: all(one.version in replica.routable for replica in here.gateway.adapters.replicas)
        )
        here.stubs[0].restart()
        for _ in range(10):
            body = await here.answer("Hi")
            assert body["agent"]["adapter"] == one.version
        await until(lambda: one.version in here.stubs[0].adapters)
        await until(lambda: one.version in here.gateway.adapters.replicas[0].routable)
        for stub in here.stubs:
            chats = [
                seen for seen in stub.seen if seen.params["temperature"] == 1.0
            ]  # the rest are self-checks
            assert {seen.model for seen in chats} <= {one.version}
            assert stub.violations == []


async def test_one_engine_down_the_other_answers(tmp_path: Path) -> None:
    async with world(tmp_path, engines=2) as here:
        await until(lambda: all(not replica.problem for replica in here.gateway.adapters.replicas))
        here.stubs[0].down = True
        for _ in range(6):
            assert (await here.chat("Hi")).status_code == 200


async def test_the_cache_serves_a_restart_without_the_registry(tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "made", named(1))
    async with world(tmp_path) as here:
        await here.in_force(here.publish(champion=one))
        stub = here.stub
    shutil.rmtree(tmp_path / "made")
    stub.restart()
    async with world(tmp_path, stubs=[stub]) as here:
        assert (await here.answer("Hi"))["agent"]["adapter"] == one.version
        assert stub.violations == []


async def test_credits_are_shown_with_their_episode(tmp_path: Path) -> None:
    from feedback.schemas import CREDITS, Credit, TurnCredit

    async with world(tmp_path) as here:
        body = await here.answer("Hi")
        credit = Credit(
            agent="travel-desk",
            episode_id=body["episode_id"],
            revision=1,
            update_id="up_1",
            turns=(TurnCredit(response_id=body["id"], turn=0, advantage=0.5),),
            at=1,
        )
        for _ in range(2):
            here.bus.send(CREDITS, credit.episode_id, credit.to_bytes())
        here.bus.flush(1)
        url, headers = f"/v1/episodes/{body['episode_id']}", {"Authorization": "Bearer secret-app"}
        shown: list[dict[str, object]] = []
        while not shown:
            shown = (await here.http.get(url, headers=headers)).json()["credits"]
        assert [each["update_id"] for each in shown] == ["up_1"]


def test_the_probe_file_is_what_the_trainer_writes(tmp_path: Path) -> None:
    """The contract's shape, so that a change there fails here."""
    write_adapter(tmp_path, named(1))
    found = json.loads((tmp_path / named(1) / PROBE).read_text())
    assert set(found) == {"prompts", "logprobs", "base_logprobs"}
    assert [len(row) + 1 for row in found["logprobs"]] == [len(prompt) for prompt in found["prompts"]]
