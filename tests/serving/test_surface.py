"""Names that others rely on: routes, metrics, models."""

from pathlib import Path

from tests.serving.harness import AGENT, BASE, bearer, world

METRICS = (
    "ratchet_requests_total",
    "ratchet_request_duration_seconds",
    "ratchet_time_to_first_token_seconds",
    "ratchet_requests_in_flight",
    "ratchet_feedback_total",
    "ratchet_feedback_score",
    "ratchet_feedback_delay_seconds",
    "ratchet_refused_total",
    "ratchet_adapter_info",
    "ratchet_adapter_replicas_loaded",
    "ratchet_adapter_load_duration_seconds",
    "ratchet_engines_up",
    "ratchet_split_generation",
    "ratchet_outbox_depth_messages",
)


async def test_the_document_lists_every_route(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        document = (await here.http.get("/openapi.json")).json()
        assert set(document["paths"]) == {
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/responses/{response_id}",
            "/v1/models",
            "/v1/models/{model_id}",
            "/v1/feedback",
            "/v1/feedback/{feedback_id}",
            "/v1/feedback/tokens",
            "/feedback",
            "/v1/episodes/{episode_id}",
            "/v1/episodes/{episode_id}/end",
            "/healthz",
            "/readyz",
            "/metrics",
        }


async def test_metrics_have_their_names_and_no_content(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        body = await here.answer("My secret wish", user="anna")
        await here.rate({"response_id": body["id"], "name": "user_rating", "value": True})
        text = (await here.http.get("/metrics")).text
        for name in METRICS:
            assert f"# TYPE {name} " in text or f"# TYPE {name.removesuffix('_total')} " in text, name
        for secret in ("wish", "anna", body["episode_id"], body["id"]):
            assert secret not in text


async def test_models_are_listed_by_their_stable_name(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        listed = (await here.http.get("/v1/models", headers=bearer())).json()
        assert [card["id"] for card in listed["data"]] == [AGENT]
        card = (await here.http.get(f"/v1/models/{AGENT}", headers=bearer())).json()
        assert card["ratchet"]["champion"] == BASE
        missing = await here.http.get("/v1/models/gpt-x", headers=bearer())
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await here.http.get("/v1/models")).status_code == 401
