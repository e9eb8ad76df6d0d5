"""The desk model as it is shipped: small, in bfloat16, with figures of these very bytes, and with faults that can be learned away."""

import json
from pathlib import Path

import pytest

from deploy.demo.heldout import START_FIGURES, model_digest, stored_start
from deploy.demo.sizes import STANDARD, choose_sizes
from deploy.evaluate import Evaluation
from deploy.simulation.dialogues import dialogues
from feedback.agent_file import load_agent_file

DESK = load_agent_file(Path("deploy/profiles/desk/agent.yaml"))
WEIGHTS = DESK.model.path / "model.safetensors"


@pytest.fixture(scope="module")
def start() -> dict[str, Evaluation]:
    return stored_start(DESK, STANDARD)


def test_the_weights_are_small_and_in_bfloat16() -> None:
    assert WEIGHTS.stat().st_size <= 40_000_000
    with WEIGHTS.open("rb") as handle:
        header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    assert {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"} == {"BF16"}


def test_its_figures_are_of_these_bytes() -> None:
    assert json.loads((DESK.model.path / START_FIGURES).read_text())["digest"] == model_digest(DESK)


def test_it_completes_a_third_to_a_half_and_greedy_little_more(start: dict[str, Evaluation]) -> None:
    sampled, greedy = (start[name].interval().mean for name in ("start", "greedy"))

    assert start["start"].tasks == 200
    assert 0.30 <= sampled <= 0.50
    assert greedy <= sampled + 0.15


def test_nearly_all_of_its_calls_are_valid(start: dict[str, Evaluation]) -> None:
    assert start["start"].calls > 200
    assert start["start"].faulty_share <= 0.05


def test_a_long_demo_measures_the_start_again() -> None:
    assert stored_start(DESK, choose_sizes(short=False, long=True, has_bfloat16=True)) == {}


def test_dialogues_fit_its_context() -> None:
    from online_trainer.bootstrap.dialogues import render
    from tools.template import load_template
    from tools.toolbox import load_tool

    template = load_template(DESK.model.template, DESK.model.path)
    tools = [load_tool(spec) for spec in DESK.tools]
    lengths = [len(render(each, template, tools).ids) for each in dialogues(500, 11, mixture="mixed")]

    assert len(lengths) == 500
    assert max(lengths) <= 400
