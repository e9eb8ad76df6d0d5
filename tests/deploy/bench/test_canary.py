"""Every published key is measured, and the cheap figures are within their bars already on small samples."""

from pathlib import Path

from deploy.bench.canary import measure, salt_correlation, scenarios, share_error
from feedback.agent_file import load_agent_file

DESK = load_agent_file(Path(__file__).parents[3] / "deploy/profiles/desk/agent.yaml").canary


def test_every_scenario_has_a_key_of_its_own() -> None:
    names = [scenario.name for scenario in scenarios(DESK)]
    assert len(set(names)) == len(names)
    first = dict(pair for pair, _ in zip(measure(DESK, runs=20), range(2), strict=False))
    assert set(first) == {"canary.aa_false_promotion", "canary.aa_false_rollback"}


def test_the_published_keys_are_those_that_are_measured() -> None:
    keys = {f"canary.{scenario.name}{figure}" for scenario in scenarios(DESK) for figure in scenario.figures}
    assert {
        "canary.aa_drift.false_rollback",
        "canary.aa_clustered.false_promotion",
        "canary.detect.070_030.median_units",
        "canary.promote.desk_plus20.median_units",
        "canary.equal_candidate_promoted_4000",
        "canary.boundary.false_promotion_per_100",
        "canary.sabotage.p95_units_hit",
        "canary.sabotage.silent_p95_units_hit",
    } <= keys


def test_users_fall_into_the_holdout_as_its_share_says() -> None:
    assert share_error(users=1000) < 3.0


def test_two_salts_do_not_know_each_other() -> None:
    assert salt_correlation(units=20_000) < 4 / 20_000**0.5
