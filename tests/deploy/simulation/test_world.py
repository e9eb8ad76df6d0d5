"""Tasks: new where they must be, and wide."""

from collections import Counter

from deploy.simulation.world import NIGHTS, task
from tools.travel import CITIES

TRAIN = [task("train", seed) for seed in range(3000)]
HELDOUT = [task("heldout", seed) for seed in range(600)]


def test_a_task_is_a_function_of_its_stream_and_seed() -> None:
    assert [task("train", seed) for seed in range(50)] == TRAIN[:50]
    assert task("heldout", 1).requests != task("train", 1).requests


def test_no_first_message_is_in_both_streams() -> None:
    first = {
        stream: {one.requests[0].text for one in tasks} for stream, tasks in (("t", TRAIN), ("h", HELDOUT))
    }
    assert not first["t"] & first["h"]
    assert len(first["h"]) > 500


def test_requests_carry_the_state_their_answer_needs() -> None:
    for one in TRAIN:
        assert 1 <= len(one.requests) <= 3
        before = one.requests[0]
        assert before.kind == "ask" and before.city in before.text and str(before.nights) in before.text
        for request in one.requests[1:]:
            if request.kind == "nights":
                assert request.nights != before.nights and str(request.nights) in request.text
            if request.kind == "city":
                assert request.city != before.city and request.city in request.text
            if request.kind in ("weather", "cheaper"):
                assert (request.city, request.nights) == (before.city, before.nights)
            assert request.priced == (request.kind != "weather")
            before = request
        kinds = Counter(request.kind for request in one.requests)
        assert max(kinds["city"], kinds["weather"], kinds["cheaper"]) <= 1


def test_the_world_is_wide() -> None:
    for tasks in (TRAIN, HELDOUT):
        assert {request.city for one in tasks for request in one.requests} == set(CITIES)
        assert {request.nights for one in tasks for request in one.requests} == set(NIGHTS)
        assert {request.kind for one in tasks for request in one.requests} == {
            "ask", "nights", "city", "weather", "cheaper",
        }  # fmt: skip
        sizes = Counter(len(one.requests) for one in tasks)
        assert 0.4 < sizes[1] / len(tasks) < 0.6 and sizes[3] > 0
