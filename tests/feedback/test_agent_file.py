"""A wrong key is named with the nearest right one, and the shipped files are valid."""

from pathlib import Path

import pytest
import yaml

from feedback.agent_file import AgentFileError, load_agent_file

MINIMAL = {"agent": "travel-desk", "model": {"path": "model"}, "system": "You help."}
PROFILES = sorted((Path(__file__).parents[2] / "deploy" / "profiles").glob("*/agent.yaml"))


def load(folder: Path, **changes: object) -> object:
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | changes))
    return load_agent_file(path)


def test_a_minimal_file_has_every_default_and_a_path_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    agent = load_agent_file(path)
    assert agent.model.path == tmp_path / "model"
    assert agent.base_version == "travel-desk-000000"
    assert (agent.episode.idle, agent.episode.grace) == (1800.0, 600.0)
    assert agent.metrics["user_rating"].window == 86_400.0
    assert agent.rewards.rating_trust == 0.7
    assert agent.training.batch.min_episodes == 48


@pytest.mark.parametrize(
    ("changes", "key", "nearest"),
    [
        ({"metricz": {}}, "metricz", "metrics"),
        ({"episode": {"idel": "15s"}}, "episode.idel", "idle"),
        ({"rewards": {"weights": {"outcom": 1}}}, "rewards.weights.outcom", "outcome"),
        ({"training": {"ppo": {"clip_hi": 0.2}}}, "training.ppo.clip_hi", "clip_high"),
        ({"canary": {"marginn": 0.1}}, "canary.marginn", "margin"),
    ],
)
def test_an_unknown_key_names_itself_and_the_nearest_right_one(
    tmp_path: Path, changes: dict[str, object], key: str, nearest: str
) -> None:
    with pytest.raises(AgentFileError) as caught:
        load(tmp_path, **changes)
    assert f"{key}: unknown key; did you mean {nearest!r}?" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"agent": "Travel Desk"}, "agent"),
        ({"episode": {"idle": "soon"}}, "not a duration"),
        ({"holdout": {"share": 1.5}}, "holdout.share"),
        ({"metrics": {"stars": {"type": "float", "min": 5, "max": 1}}}, "min must be below max"),
        ({"metrics": {"stars": {"type": "float", "max": float("inf")}}}, "metrics.stars.max"),
        ({"metrics": {"comment": {}}}, "'comment' is always there"),
        ({"metrics": {"how nice?": {}}}, "must match"),
        ({"metrics": {"better": {"type": "comparison", "level": "episode"}}}, "level must be response"),
        ({"canary": {"steps": [{"setShare": 0.5}]}}, "analysis"),
        ({"rewards": {"penalties": {"empty": 0.5}}}, "rewards.penalties.empty"),
        ({"model": {}}, "model.path"),
        ({"rewards": {"weights": {"outcome": float("nan")}}}, "rewards.weights.outcome"),
        ({"training": {"reward_model": {"kappa": float("inf")}}}, "training.reward_model.kappa"),
        ({"training": {"optimizer": {"lr": float("inf")}}}, "training.optimizer.lr"),
        ({"episode": {"idle": float("inf")}}, "episode.idle"),
        ({"tools": [{"mcp": {"command": "x"}}]}, r"tools\.0: .*address like tools\.travel:flights"),
        ({"context": {"summary": True}}, "context.summary: unknown key"),
        ({"context": {"facts": True}}, "context.facts: unknown key"),
        ({"context": {"memory": {"k": 4}}}, "context.memory: unknown key"),
    ],
)
def test_a_wrong_value_names_its_field(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(AgentFileError, match=says):
        load(tmp_path, **changes)


@pytest.mark.parametrize("text", ["[1, 2]", "agent: [", "just words"])
def test_what_is_not_a_mapping_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(AgentFileError, match=r"agent\.yaml"):
        load_agent_file(path)


def test_a_missing_file_is_an_agent_file_error(tmp_path: Path) -> None:
    with pytest.raises(AgentFileError, match="No such file"):
        load_agent_file(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("15s", 15), ("30m", 1800), ("24h", 86400), ("7d", 604800)]
)
def test_durations(tmp_path: Path, text: str, seconds: float) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"episode": {"idle": text}}))
    assert load_agent_file(path).episode.idle == seconds


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.parent.name)
def test_the_shipped_profiles_are_valid(path: Path) -> None:
    assert load_agent_file(path).agent


def test_there_is_a_profile_to_check() -> None:
    assert "desk" in {path.parent.name for path in PROFILES}
