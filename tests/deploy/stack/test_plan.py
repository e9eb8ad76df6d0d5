"""The plan of a stack: what is named is not started, and every process is told the same addresses."""

from pathlib import Path

import pytest

from deploy.stack.plan import Plan, StackSettings, plan_stack
from feedback.agent_file import AgentFile, load_agent_file


def plan(agent: AgentFile, settings: StackSettings) -> Plan:
    return plan_stack(settings, agent, dtype="float32", cores=2)


def names(found: Plan) -> set[str]:
    return {part.name for part in found.parts}


def test_everything_is_started_when_nothing_is_named(desk_agent: AgentFile, tmp_path: Path) -> None:
    found = plan(desk_agent, StackSettings(home=tmp_path, kafka="", mlflow="", engines=""))

    assert names(found) == {"kafka", "mlflow", "engine", "serving", "feedback", "trainer", "deploy"}
    assert found.environment["RATCHET_KAFKA"] == "127.0.0.1:9092"
    assert found.environment["RATCHET_HOME"] == str(tmp_path)


@pytest.mark.parametrize(
    ("named", "missing", "variable"),
    [
        ({"kafka": "broker:9092"}, "kafka", "RATCHET_KAFKA"),
        ({"mlflow": "http://127.0.0.1:1"}, "mlflow", "MLFLOW_TRACKING_URI"),
        ({"engines": "http://127.0.0.1:1,http://127.0.0.1:2"}, "engine", "SERVING_ENGINES"),
    ],
)
def test_what_is_named_is_used_and_not_started(
    desk_agent: AgentFile, tmp_path: Path, named: dict[str, str], missing: str, variable: str
) -> None:
    unnamed = {"kafka": "", "mlflow": "", "engines": ""}
    found = plan(desk_agent, StackSettings(home=tmp_path).model_copy(update={**unnamed, **named}))

    assert missing not in names(found)
    assert len(found.parts) == 6
    assert found.environment[variable] == next(iter(named.values()))


def test_every_port_is_somebodys_only(desk_agent: AgentFile, tmp_path: Path) -> None:
    found = plan(desk_agent, StackSettings(home=tmp_path, kafka="", mlflow="", engines=""))
    ports = [port for part in found.parts for port in part.ports]

    assert len(ports) == len(set(ports)) == 8
    assert all(f":{part.ports[0]}" in part.health for part in found.parts)


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_the_engine_gets_half_of_the_cores(
    desk_agent: AgentFile, tmp_path: Path, cores: int, threads: str
) -> None:
    found = plan_stack(StackSettings(home=tmp_path, engines=""), desk_agent, dtype="float32", cores=cores)
    engine = next(part for part in found.parts if part.name == "engine")

    assert engine.environment["OMP_NUM_THREADS"] == threads


def test_only_the_trainer_yields_the_processor(desk_agent: AgentFile, tmp_path: Path) -> None:
    found = plan(desk_agent, StackSettings(home=tmp_path))

    assert {part.name for part in found.parts if part.nice > 0} == {"trainer"}


def test_the_parts_take_the_keys_of_the_settings_and_not_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The demo's stack has a key of its own; the variable of whoever started it must not reach the parts."""
    monkeypatch.setenv("RATCHET_API_KEYS", "ada:secret:chat")
    settings = StackSettings()
    own = settings.model_copy(update={"api_keys": ""})

    for taken, keys in ((settings, "ada:secret:chat"), (own, "")):
        plan = plan_stack(taken, load_agent_file(taken.agent_file), dtype="float32", cores=2)
        assert plan.environment["RATCHET_API_KEYS"] == keys
        assert all("RATCHET_API_KEYS" not in part.environment for part in plan.parts)
