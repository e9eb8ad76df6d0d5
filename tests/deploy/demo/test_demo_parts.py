"""The demo's own parts: a home it may empty, sizes, the summary's keys, what fails it, and the page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.demo.acts import Sabotage
from deploy.demo.facts import collect
from deploy.demo.heldout import Held, spread
from deploy.demo.home import HomeTaken, fresh_home, own_agent_file
from deploy.demo.report import write_report
from deploy.demo.sizes import choose_sizes
from deploy.demo.summary import Inputs, canaries, series, shortcomings, summarise
from deploy.evaluate import Evaluation
from deploy.stack.machine import Machine
from feedback.agent_file import load_agent_file
from feedback.schemas import Verdict, VersionVerdict
from tests.deploy.demo.story import FIRST, bus_of, clients, messages

DESK = Path("deploy/profiles/desk/agent.yaml")


def evaluation(*, won: int, tasks: int = 200) -> Evaluation:
    success = tuple([1.0] * won + [0.0] * (tasks - won))
    return Evaluation(tasks, 1, 0, 1.0, success, calls=10, faulty_calls=1)


def inputs() -> Inputs:
    held = Held(
        start=evaluation(won=70),
        greedy=evaluation(won=90),
        head=evaluation(won=140),
        champion=evaluation(won=120),
        curve=[(2, evaluation(won=140))],
    )
    return Inputs(
        seed=7,
        machine=Machine(cores=2, cpu_flags=frozenset(), memory_available=1, memory_total=1),
        wall_s=100.0,
        setup_s=5.0,
        facts=collect(bus_of(messages())),
        clients=clients(),
        held=held,
        sabotage=Sabotage(version="travel-desk-000002", rolled_back=True, success=0.0, faulty_share=0.6),
    )


def test_the_summary_has_the_documented_keys_in_order() -> None:
    summary = summarise(inputs())

    assert list(summary) == [
        "wall_s", "setup_s", "seed", "machine", "heldout", "holdout", "episodes", "requests", "ratings",
        "updates", "versions", "canaries", "mismatches",
    ]  # fmt: skip
    assert summary["heldout"]["gain_head"]["mean"] == pytest.approx(0.35)
    assert summary["heldout"]["gain_champion"]["lo"] > 0
    assert summary["episodes"]["flipped"] == 1
    assert summary["canaries"]["sabotage_rolled_back"] is True
    assert shortcomings(summary) == []


def test_a_version_promoted_and_later_taken_back_counts_as_both() -> None:
    facts = collect(bus_of(messages()))
    fallen = VersionVerdict(version=FIRST, verdict=Verdict.ROLLED_BACK, reason="undone")
    (split,) = facts.splits
    facts.splits.append(split.model_copy(update={"generation": 3, "verdicts": (*split.verdicts, fallen)}))

    counted = canaries(facts, None)

    assert (counted["promoted"], counted["rolled_back"], counted["superseded"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("requests", "failed", 1, "1 failed"),
        ("requests", "mixed_version", 2, "2 mixed_version"),
        ("ratings", "lost", 1, "1 lost"),
        ("ratings", "doubled", 1, "1 doubled"),
        ("updates", "accepted", 0, "no update"),
        ("canaries", "sabotage_rolled_back", False, "not rolled back"),
    ],
)
def test_what_must_never_be_fails_the_demo(section: str, key: str, value: object, said: str) -> None:
    summary = summarise(inputs())
    summary[section][key] = value

    assert any(said in found for found in shortcomings(summary))


def test_a_holdout_that_moved_fails_the_demo() -> None:
    """Seen: an engine that answered the frozen start's requests through an adapter, .42 to .66."""
    summary = summarise(inputs())
    summary["holdout"] = {
        "first": {"mean": 0.4167, "lo": 0.349, "hi": 0.4896},
        "last": {"mean": 0.6562, "lo": 0.5885, "hi": 0.724},
    }
    assert any("from 0.42 to 0.66" in found for found in shortcomings(summary))


def test_a_home_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "db" / "serving.sqlite"
    precious.parent.mkdir()
    precious.touch()

    with pytest.raises(HomeTaken, match="RATCHET_HOME"):
        fresh_home(tmp_path)
    assert precious.exists()


def test_an_earlier_demo_is_emptied_and_its_key_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fresh_home(home)
    (home / "db").mkdir()
    (home / "api-key").write_text("secret")

    fresh_home(home)

    assert not (home / "db").exists()
    assert (home / "api-key").read_text() == "secret"


def test_short_needs_less_and_is_still_a_valid_agent_file(tmp_path: Path) -> None:
    shortened = load_agent_file(own_agent_file(DESK, tmp_path / "agent.yaml", short=True))

    assert own_agent_file(DESK, tmp_path / "other.yaml", short=False) == DESK
    assert shortened.offer.min_updates == 1
    assert shortened.training.batch.min_episodes == 24
    assert shortened.training.lora == load_agent_file(DESK).training.lora
    assert shortened.model.path == load_agent_file(DESK).model.path
    assert yaml.safe_load(DESK.read_text())["offer"]["min_updates"] == 8


def test_both_forms_at_once_are_refused_and_slow_machines_get_more_time() -> None:
    with pytest.raises(ValueError, match="exclude"):
        choose_sizes(short=True, long=True, has_bfloat16=True)
    fast, slow = (choose_sizes(short=False, long=False, has_bfloat16=has) for has in (True, False))
    assert slow.learn_s > fast.learn_s and slow.rated == fast.rated


def test_curve_points_are_spread_over_the_heads() -> None:
    heads = [(number, number) for number in range(12)]

    assert [rated for rated, _ in spread(heads, 3)] == [2, 6, 10]  # type: ignore[arg-type]
    assert spread(heads, 0) == [] and len(spread(heads[:2], 5)) == 2  # type: ignore[arg-type]


def test_the_page_shows_what_the_summary_says(tmp_path: Path) -> None:
    given = inputs()
    summary = summarise(given)

    write_report(tmp_path / "report.html", summary, series(given))

    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert FIRST in page and "+35.0" in page and "rolled back" in page
    assert not re.search(r"<script|<link|src=|url\(http", page)


def test_the_page_says_so_when_the_sabotage_was_not_rolled_back(tmp_path: Path) -> None:
    given = inputs()
    assert given.sabotage is not None
    given = replace(given, sabotage=replace(given.sabotage, rolled_back=False))

    write_report(tmp_path / "report.html", summarise(given), series(given))

    assert "NOT rolled back" in (tmp_path / "report.html").read_text()
