"""The HTTP API over a real ledger: every verb, every refusal, and no answer without an admin key."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.api.app import create_app
from deploy.api.desk import Desk
from deploy.canary.offers import Offers
from feedback.manifest import CONFIG, WEIGHTS, seal
from feedback.schemas import Channels, PricedTurn, Sampling
from serving.auth import load_keys
from tests.deploy.parts import SECRET, Away, Stage, Taken
from tests.feedback.building import turn

BASE = "travel-desk-000000"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        Desk(
            stage.steering,
            Offers(stage.steering, stage.registry, gate=gate, taken=Taken),
            load_keys(stage.home, f"ada:{SECRET}:admin,bob:other-secret:chat"),
            stage.outbox,
            registry_down=Away,
            lag=lambda: stage.controller.lag,
            is_alive=lambda: True,
        )
    )
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://deploy", headers=headers
    ) as open_client:
        yield open_client


def gate(folder: Path) -> tuple[str, ...]:
    """Refuses what says it is inert."""
    return ("inert: it changes no weight",) if b"inert" in (folder / WEIGHTS).read_bytes() else ()


def adapter(folder: Path, content: str = "weights") -> Path:
    """A sealed folder."""
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_text(content)
    (folder / CONFIG).write_text("{}")
    seal(folder)
    return folder


async def test_without_a_key_nobody_steers(client: httpx.AsyncClient) -> None:
    for path in ("/v1/canaries", "/v1/status", "/v1/versions", "/v1/events"):
        reply = await client.get(path, headers={"Authorization": "Bearer wrong"})
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
    reply = await client.get("/v1/status", headers={"Authorization": "Bearer other-secret"})
    assert reply.status_code == 403
    assert (await client.get("/healthz", headers={"Authorization": ""})).status_code == 200


async def test_an_offered_folder_is_registered_under_the_next_number(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    stage.offer(7)
    stage.turn()
    folder = adapter(stage.home / "sabotage")
    reply = await client.post("/v1/canaries", json={"path": str(folder)})
    assert reply.status_code == 201
    body = reply.json()
    assert (body["version"], body["phase"], body["offered_by"]) == ("travel-desk-000008", "Pending", "ada")
    again = await client.post("/v1/canaries", json={"path": str(folder)})
    assert (again.status_code, again.json()["id"]) == (200, body["id"])
    assert len(stage.registry.versions) == 1
    assert stage.registry.versions["travel-desk-000008"].parent == BASE


async def test_what_the_gate_or_the_manifest_refuses_is_not_registered(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    inert = adapter(stage.home / "inert", "inert")
    broken = adapter(stage.home / "broken")
    (broken / WEIGHTS).write_text("other bytes")
    for folder, word in ((inert, "inert"), (broken, "SHA-256"), (stage.home / "absent", "manifest")):
        reply = await client.post("/v1/canaries", json={"path": str(folder)})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (422, "path", "bad_adapter")
        assert word in error["message"]
    assert (stage.registry.versions, stage.registry.runs) == ({}, {})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"path": "a", "version": "b"}, None),
        ({"pth": "a"}, "pth"),
        ({"version": 7}, "version"),
        ([], None),
    ],
)
async def test_malformed_offers_name_the_field(
    client: httpx.AsyncClient, body: object, param: str | None
) -> None:
    reply = await client.post("/v1/canaries", json=body)
    assert reply.status_code == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    if param is not None:
        assert reply.json()["error"]["param"] == param


async def test_a_registry_that_is_away_says_when_to_come_back(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    folder = adapter(stage.home / "late")
    stage.registry.down = True
    reply = await client.post("/v1/canaries", json={"path": str(folder)})
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "15")
    stage.registry.down = False
    assert (await client.post("/v1/canaries", json={"path": str(folder)})).status_code == 201


async def test_unknown_ids_and_versions_are_404(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/canaries/cn_none")).status_code == 404
    assert (await client.get("/v1/canaries/active")).status_code == 404
    assert (await client.post("/v1/canaries/cn_none/abort")).status_code == 404
    assert (await client.post("/v1/canaries", json={"version": "travel-desk-000099"})).status_code == 404


async def test_verbs_move_the_canary_and_are_logged_with_the_actor(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    version = stage.offer(1)
    stage.turn()
    phases = []
    for verb, body in (("pause", None), ("resume", None), ("promote", None), ("promote", {"full": True})):
        reply = await client.post(f"/v1/canaries/active/{verb}", json=body)
        assert reply.status_code == 200, reply.text
        phases.append((reply.json()["phase"], reply.json()["share"]))
    assert phases == [("Paused", 0.2), ("Progressing", 0.2), ("Progressing", 0.5), ("Promoting", 0.0)]
    assert stage.split.champion.version == version
    reply = await client.post("/v1/canaries/latest/abort")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "illegal_transition")
    for _ in range(2):
        stage.turn()
    assert (await client.get("/v1/canaries/latest")).json()["phase"] == "Succeeded"
    await client.post("/v1/canaries/latest/undo")
    assert stage.split.champion.version == BASE
    events = (await client.get("/v1/events")).json()["data"]
    actors = {event["reason"]: event["actor"] for event in events}
    assert (actors["paused"], actors["resumed"], actors["promoted by hand"], actors["undone"]) == ("ada",) * 4
    assert actors["split delivered"] == "controller"


async def test_undo_of_the_latest_goes_back_once_more_each_time_and_others_are_409(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    for number in (1, 2):
        stage.offer(number, parent=number - 1)
        stage.turn()
        await client.post("/v1/canaries/active/promote", json={"full": True})
        stage.settle()
    first, _ = stage.canaries()
    stage.offer(3, parent=2)
    stage.turn()
    reply = await client.post(f"/v1/canaries/{first.canary_id}/undo")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "illegal_transition")
    for champion in ("travel-desk-000001", BASE):
        assert (await client.post("/v1/canaries/latest/undo")).status_code == 200
        assert stage.split.champion.version == champion
    assert (await client.post("/v1/canaries/latest/undo")).status_code == 409


async def test_an_aborted_version_needs_a_retry(client: httpx.AsyncClient, stage: Stage) -> None:
    version = stage.offer(1)
    stage.turn()
    aborted = (await client.post("/v1/canaries/active/abort")).json()
    assert (aborted["phase"], aborted["verdict"]) == ("Aborted", "aborted")
    reply = await client.post("/v1/canaries", json={"version": version})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "refused")
    retried = (await client.post(f"/v1/canaries/{aborted['id']}/retry")).json()
    assert (retried["version"], retried["phase"]) == (version, "Pending")
    assert retried["id"] != aborted["id"]
    stage.turn()
    assert (await client.get("/v1/canaries/active")).json()["id"] == retried["id"]


async def test_an_unknown_verb_or_option_is_refused(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    assert (await client.post("/v1/canaries/active/dance")).status_code == 400
    reply = await client.post("/v1/canaries/active/promote", json={"ful": True})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "ful")


async def test_status_is_one_page_of_what_is_live_and_why(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    for outcome in (1, 0, 1):
        stage.episode("champion", outcome)
    stage.episode("candidate", 1)
    stage.episode("candidate", None)
    stage.settle()
    status: dict[str, Any] = (await client.get("/v1/status")).json()
    assert (status["champion"], status["share"], status["canary"]["phase"]) == (BASE, 0.2, "Progressing")
    evidence = status["canary"]["evidence"]
    assert evidence["arms"]["champion"]["n"] == 3
    assert evidence["arms"]["champion"]["mean"] == pytest.approx(2 / 3)
    assert evidence["arms"]["candidate"]["silent"] == 1
    assert evidence["worse"]["log10_bar"] == pytest.approx(1.30103)
    assert status["verdicts"] == {"promoted": 0, "rolled_back": 0, "superseded": 0, "aborted": 0}
    assert status["units"]["champion"] == {"episodes": 3, "outcomes": 3, "good": 2}
    assert status["events"][-1]["reason"] == "share 0.2"
    assert all(left == 0 for left in status["lag"].values())


def priced(temperature: float) -> PricedTurn:
    return PricedTurn(
        response_id="chatcmpl-1",
        interaction=0,
        ends_interaction=True,
        turn=turn(),
        sampling=Sampling(temperature=temperature),
        channels=Channels(),
    )


async def test_status_warns_while_most_turns_cannot_be_trained_for_how_they_were_sampled(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    async def warnings() -> list[str]:
        found: list[str] = (await client.get("/v1/status")).json()["warnings"]
        return found

    for number in range(30):
        stage.episode("champion", 1, turns=(priced(1.0 if number % 2 else 0.0),))
        stage.episode("holdout", 1, turns=(priced(0.0),))
    stage.settle()
    assert await warnings() == []
    again = stage.episode("champion", 1, turns=(priced(0.0),))
    stage.episode("champion", 1, turns=(priced(1.0),), episode_id=again, revision=2)
    stage.settle()
    (said,) = await warnings()
    assert said.startswith("52% of the last 31 turns cannot be trained: clients set temperature;")


async def test_versions_say_how_they_fared(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    await client.post("/v1/canaries/active/abort")
    versions = (await client.get("/v1/versions")).json()["data"]
    assert [(each["version"][-1], each["champion"], each["refused"]) for each in versions] == [
        ("0", True, None),
        ("1", False, "aborted by hand"),
    ]


async def test_metrics_have_the_published_names(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    text = (await client.get("/metrics")).text
    for name in (
        'ratchet_canary_info{agent="travel-desk"',
        "ratchet_canary_share_ratio 0.2",
        'ratchet_canary_log_evalue{side="worse"} 0.0',
        'ratchet_canary_rated_units{arm="candidate"} 0.0',
        'ratchet_canary_srm_pvalue{check="assignment"} 1.0',
        'ratchet_canaries_total{outcome="promoted"} 0.0',
        'ratchet_bus_consumer_lag_messages{group="controller"',
    ):
        assert name in text


async def test_events_page_by_sequence(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.offer(1)
    stage.turn()
    events = (await client.get("/v1/events", params={"limit": 2})).json()["data"]
    assert len(events) == 2
    first = (await client.get("/v1/events", params={"after": 1, "limit": 1})).json()["data"]
    assert [event["seq"] for event in first] == [2]


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        (b"{", "the body is not JSON", None, "invalid_json"),
        (b"{}", "the body: give exactly one of path and version", None, "invalid_value"),
        (b"[]", "the body: Input should be", None, "invalid_value"),
        (b'{"path": 5}', "path: ", "path", "invalid_value"),
    ],
)
async def test_a_bad_offer_names_what_is_wrong(
    client: httpx.AsyncClient, body: bytes, message: str, param: str | None, code: str
) -> None:
    reply = await client.post("/v1/canaries", content=body, headers={"Content-Type": "application/json"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["message"].startswith(message)
