"""Teachers and their dialogues: what each habit does, and that the careful one is right."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from deploy.simulation.conduct import Conduct, Mixture, Teacher
from deploy.simulation.dialogues import dialogue, write
from deploy.simulation.heldout import HeldoutEpisode
from deploy.simulation.reactions import COMPLAINTS, TO_COMPLAINT, TO_THANKS, reaction
from deploy.simulation.travel import faults, truth
from deploy.simulation.world import Task, task
from tools.calculator import calculate
from tools.travel import flights, hotels, weather

TOOLS = {"flights": flights, "hotels": hotels, "weather": weather, "calc": calculate}
TASKS = [task("train", seed) for seed in range(400)]


def wrong(wanted: Task, manners: Conduct) -> list[tuple[str, ...]]:
    teacher = Teacher(manners, str(wanted.seed), random.Random(wanted.seed))
    return [
        faults(teacher.answer(request)[-1]["content"], truth(request, str(wanted.seed)))
        for request in wanted.requests
    ]


def mix(mixture: Mixture, count: int = 800) -> list[dict[str, Any]]:
    return [dialogue(0, index, mixture=mixture) for index in range(count)]


def test_the_careful_teacher_is_always_right() -> None:
    assert all(not any(wrong(wanted, Conduct())) for wanted in TASKS)


@pytest.mark.parametrize(
    ("manners", "blamed"),
    [
        (Conduct(first_hotel=True), {"hotel"}),
        (Conduct(first_flight=True), {"flight"}),
        (Conduct(guesses_total=True), {"total"}),
        (Conduct(second="forgetful"), {"total"}),
        (Conduct(second="guess"), {"total"}),
        (Conduct(second="unchecked"), {"flight", "hotel", "weather"}),
    ],
)
def test_a_habit_does_its_own_harm_and_no_other(manners: Conduct, blamed: set[str]) -> None:
    found = [
        (step, fault) for one in TASKS for step, named in enumerate(wrong(one, manners)) for fault in named
    ]
    assert blamed <= {fault for _, fault in found} <= blamed | {"total"}
    if manners.second:
        assert min(step for step, _ in found) == 1


def test_look_ups_say_what_the_real_tools_say() -> None:
    checked: Counter[str] = Counter()
    for one in mix("mixed", 200):
        config = {"configurable": {"episode_id": one["task"]["session"]}}
        waiting: list[dict[str, Any]] = []
        for message in one["messages"]:
            if message["role"] == "tool":
                call = waiting.pop(0)
                assert call["name"] == message["name"]
                assert TOOLS[call["name"]].invoke(call["arguments"], config) == message["content"]
                checked[call["name"]] += 1
            else:
                assert not waiting
                waiting = list(message.get("calls", []))
    assert set(checked) == set(TOOLS) and min(checked.values()) > 10


def test_messages_alternate_and_end_with_the_agent() -> None:
    for one in mix("majority", 200):
        roles = [message["role"] for message in one["messages"]]
        assert roles[0] == "user" and roles[-1] == "assistant"
        assert all((a, b) != ("user", "user") for a, b in pairwise(roles))
        assert sum(role == "user" for role in roles) <= 4


@pytest.mark.parametrize(
    ("mixture", "low", "high"), [("careful", 1, 1), ("mixed", 0.5, 0.8), ("majority", 0.35, 0.55)]
)
def test_mixtures_are_right_as_often_as_they_should_be(mixture: Mixture, low: float, high: float) -> None:
    made = mix(mixture)
    assert low <= sum(one["task"]["right"] for one in made) / len(made) <= high
    habits = Counter(habit for one in made for habit in one["task"]["conducts"])
    if mixture == "majority":
        assert 0.7 < habits["first_hotel"] / len(made) < 0.8
        assert 0.1 < sum(habits[kind] for kind in ("forgetful", "unchecked", "guess")) / len(made) < 0.2


def test_reactions_follow_the_truth_with_a_little_crossing() -> None:
    draw = random.Random(0)
    for blamed in ((), ("hotel",)):
        said = [reaction(draw, blamed) for _ in range(4000)]
        spoken = [one for one in said if one]
        assert 0.47 < len(spoken) / len(said) < 0.53
        crossed = sum(complains != bool(blamed) for complains, _ in spoken)
        assert 0.03 < crossed / len(spoken) < 0.07
    assert {words for complains, words in spoken if complains} == set(COMPLAINTS["hotel"])


def test_courtesies_are_short_answers_to_reactions() -> None:
    said = Counter(
        after["content"]
        for one in mix("majority", 300)
        for message, after in pairwise(one["messages"])
        if message["role"] == "user" and message["content"] in {w for ws in COMPLAINTS.values() for w in ws}
    )
    assert set(said) == set(TO_COMPLAINT)
    assert not set(TO_COMPLAINT) & set(TO_THANKS)


def test_heldout_episodes_judge_without_thanks() -> None:
    succeeded = Counter[bool]()
    for seed in range(100):
        for careless in (False, True):
            episode = HeldoutEpisode(seed)
            teacher = Teacher(Conduct(first_hotel=careless), episode.episode_id, random.Random(0))
            for request in episode.task.requests:
                assert episode.user_message() == request.text and not episode.success()
                episode.reply(teacher.answer(request)[-1]["content"])
            assert episode.user_message() is None
            succeeded[careless] += episode.success()
            with pytest.raises(ValueError, match="over"):
                episode.reply("more")
    assert succeeded[False] == 100 and 20 < succeeded[True] < 70


def test_the_command_writes_the_same_lines_again(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(write)
    for name in ("a", "b"):
        arguments = ["--count", "20", "--seed", "5", "--conduct", "majority", "--out", str(tmp_path / name)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    lines = (tmp_path / "a").read_text().splitlines()
    assert lines == (tmp_path / "b").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        dialogue(5, index, mixture="majority") for index in range(20)
    ]
    assert dialogue(6, 0, mixture="majority") != dialogue(5, 0, mixture="majority")
