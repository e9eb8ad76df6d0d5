"""The exact table of accepted values (case 56), over HTTP: what is stored, and which field a refusal names."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from feedback.schemas import FEEDBACK, Feedback
from tests.serving.harness import bearer, until, world

METRICS = {
    "thumb": {"type": "boolean"},
    "unit": {"type": "float"},
    "stars": {"type": "float", "min": 1, "max": 5},
    "effort": {"type": "float", "optimize": "min"},
}
REFUSED = None
BAD_JSON = "invalid JSON"
# What is sent, as JSON text: the score under thumb, unit, stars, effort. REFUSED: 422 with the field; BAD_JSON: 400.
TABLE: list[tuple[str, Any, Any, Any, Any]] = [
    ("0", 0.0, 0.0, REFUSED, 1.0),
    ("0.0", 0.0, 0.0, REFUSED, 1.0),
    ("-0.0", 0.0, 0.0, REFUSED, 1.0),
    ("false", 0.0, REFUSED, REFUSED, REFUSED),
    ("true", 1.0, REFUSED, REFUSED, REFUSED),
    ("1", 1.0, 1.0, 0.0, 0.0),
    ("1.0", 1.0, 1.0, 0.0, 0.0),
    ("0.5", REFUSED, 0.5, REFUSED, 0.5),
    ("5", REFUSED, REFUSED, 1.0, REFUSED),
    ("3", REFUSED, REFUSED, 0.5, REFUSED),
    ("-1", REFUSED, REFUSED, REFUSED, REFUSED),
    ("1.0000001", REFUSED, REFUSED, 0.0000001 / 4, REFUSED),
    ("5.0000001", REFUSED, REFUSED, REFUSED, REFUSED),
    ("18446744073709551616", REFUSED, REFUSED, REFUSED, REFUSED),
    ("null", REFUSED, REFUSED, REFUSED, REFUSED),
    ('"1"', REFUSED, REFUSED, REFUSED, REFUSED),
    ('"true"', REFUSED, REFUSED, REFUSED, REFUSED),
    ('"up"', REFUSED, REFUSED, REFUSED, REFUSED),
    ('""', REFUSED, REFUSED, REFUSED, REFUSED),
    ('"NaN"', REFUSED, REFUSED, REFUSED, REFUSED),
    ("[1]", REFUSED, REFUSED, REFUSED, REFUSED),
    ("[]", REFUSED, REFUSED, REFUSED, REFUSED),
    ('{"value": 1}', REFUSED, REFUSED, REFUSED, REFUSED),
    ("{}", REFUSED, REFUSED, REFUSED, REFUSED),
    ("NaN", BAD_JSON, BAD_JSON, BAD_JSON, BAD_JSON),
    ("Infinity", BAD_JSON, BAD_JSON, BAD_JSON, BAD_JSON),
    ("-Infinity", BAD_JSON, BAD_JSON, BAD_JSON, BAD_JSON),
    ("1e309", BAD_JSON, BAD_JSON, BAD_JSON, BAD_JSON),
]


async def test_the_table(tmp_path: Path) -> None:
    settings = {"rater_rate": 0}
    async with world(tmp_path, agent={"metrics": METRICS}, settings=settings) as here:
        reply = await here.answer("Hi")
        stored = 0
        for text, *scores in TABLE:
            for field in ("value", "score"):
                for name, score in zip(METRICS, scores, strict=True):
                    raw = f'{{"response_id": "{reply["id"]}", "name": "{name}", "{field}": {text}}}'
                    response = await here.http.post("/v1/feedback", content=raw, headers=bearer())
                    case, body = (text, name, field), response.json()
                    if score is BAD_JSON:
                        assert (response.status_code, body["error"]["code"]) == (400, "invalid_json"), case
                    elif score is REFUSED:
                        named = "value" if text == "null" else field
                        assert (response.status_code, body["error"]["param"]) == (422, named), case
                        assert body["error"]["message"].startswith(f"{named}: "), case
                    else:
                        assert response.status_code == 202 and body["score"] == pytest.approx(
                            score, abs=1e-12
                        ), case
                        assert not isinstance(body["score"], bool) and str(body["score"])[0] != "-", case
                        stored += body["change"] != "replayed"
        absent = await here.rate({"response_id": reply["id"], "name": "thumb"})
        assert (absent.status_code, absent.json()["error"]["param"]) == (422, "value")
        await until(lambda: len(here.records(FEEDBACK)) >= stored)
        sent = [Feedback.from_bytes(record.value) for record in here.records(FEEDBACK)]
        assert len(sent) == stored
        assert all(each.score is not None and 0.0 <= each.score <= 1.0 for each in sent)


async def test_a_real_zero_is_not_lost_on_the_way(tmp_path: Path) -> None:
    """0 and false arrive on the bus as the score 0.0, and as nothing else."""
    async with world(tmp_path) as here:
        ids = [(await here.answer("Hi"))["id"] for _ in range(2)]
        for response_id, value in zip(ids, (0, False), strict=True):
            await here.rate({"response_id": response_id, "name": "user_rating", "value": value})
        await until(lambda: len(here.records(FEEDBACK)) >= 2)
        sent = [orjson.loads(record.value) for record in here.records(FEEDBACK)]
        assert [each["score"] for each in sent] == [0.0, 0.0]
        assert [each["value"] for each in sent] == [0.0, False]
