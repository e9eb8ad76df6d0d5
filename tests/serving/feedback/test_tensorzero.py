"""TensorZero's `POST /feedback`: its exact body and reply, over what is stored as any other feedback."""

from pathlib import Path

from feedback.schemas import FEEDBACK, Feedback
from tests.serving.harness import bearer, until, world


async def test_its_body_is_stored_and_its_reply_given(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi")
        blocks = [{"type": "text", "text": "Better."}]
        bodies = [
            {
                "inference_id": reply["id"],
                "metric_name": "user_rating",
                "value": False,
                "tags": {"page": "1"},
            },
            {"episode_id": reply["episode_id"], "metric_name": "user_rating", "value": True},
            {"inference_id": reply["id"], "metric_name": "comment", "value": "too long"},
            {"inference_id": reply["id"], "metric_name": "demonstration", "value": blocks},
            {"inference_id": reply["id"], "metric_name": "user_rating", "value": True, "dryrun": True},
        ]
        for body in bodies:
            response = await here.http.post("/feedback", json=body, headers=bearer())
            assert response.status_code == 200 and list(response.json()) == ["feedback_id"], body
        await until(lambda: len(here.records(FEEDBACK)) >= 4)
        sent = [Feedback.from_bytes(record.value) for record in here.records(FEEDBACK)]
        assert [(each.name, each.score, each.comment, each.correction) for each in sent] == [
            ("user_rating", 0.0, None, None),
            ("user_rating", 1.0, None, None),
            ("comment", None, "too long", None),
            ("demonstration", None, None, "Better."),
        ]


async def test_what_it_refuses_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        reply = await here.answer("Hi")
        body = {"inference_id": reply["id"], "metric_name": "user_rating", "value": True}
        cases = [
            ({**body, "response_id": reply["id"]}, "app", 400, "response_id"),
            ({**body, "metric_name": "charm"}, "app", 400, "name"),
            ({**body, "value": "up"}, "app", 422, "value"),
            ({**body, "tags": {"a": 1}}, "app", 400, "tags.a"),
            (body, "other", 404, "response_id"),
        ]
        for changed, key, status, param in cases:
            response = await here.http.post("/feedback", json=changed, headers=bearer(key))
            assert (response.status_code, response.json()["error"]["param"]) == (status, param), changed
        assert (await here.http.post("/feedback", json=body)).status_code == 401
