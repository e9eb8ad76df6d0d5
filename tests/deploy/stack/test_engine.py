"""The engine's command line: what it must carry, and what it refuses before vLLM would die of it."""

import json
from pathlib import Path

import pytest

from deploy.stack.engine import (
    EngineOptions,
    EngineUnfit,
    allowed_rank,
    check_model,
    engine_command,
    engine_environment,
    fused_modules,
)
from feedback.agent_file import AgentFile

OPTIONS = EngineOptions(port=8100, dtype="float32", threads=1, max_sequences=32, cache_mib=512)


def value_of(command: tuple[str, ...], option: str) -> str:
    return command[command.index(option) + 1]


def test_the_base_is_served_under_the_declared_start_and_log_probs_are_those_sampled(
    desk_agent: AgentFile,
) -> None:
    command = engine_command(desk_agent, OPTIONS)

    assert value_of(command, "--served-model-name") == "travel-desk-000000"
    assert value_of(command, "--logprobs-mode") == "processed_logprobs"
    assert value_of(command, "--max-loras") == "5"
    assert value_of(command, "--max-lora-rank") == "8"
    assert value_of(command, "--max-model-len") == "1024"
    where = command.index("--lora-target-modules")
    assert command[where + 1 : where + 4] == ("qkv_proj", "o_proj", "--enforce-eager")


def test_the_engine_runs_offline_and_takes_adapters_at_run_time() -> None:
    variables = engine_environment(OPTIONS)

    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["VLLM_NO_USAGE_STATS"] == "1"
    assert variables["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_the_rank_is_the_next_one_the_engine_knows(rank: int, allowed: int) -> None:
    assert allowed_rank(rank) == allowed


def test_a_rank_beyond_the_engine_is_refused_by_the_settings_name() -> None:
    with pytest.raises(EngineUnfit, match=r"training\.lora\.r: 513"):
        allowed_rank(513)


def test_the_trainers_modules_get_the_engines_names_once_each() -> None:
    assert fused_modules(["v_proj", "q_proj", "o_proj", "up_proj", "gate_proj", "down_proj"]) == (
        "qkv_proj",
        "o_proj",
        "gate_up_proj",
        "down_proj",
    )
    with pytest.raises(EngineUnfit, match="'lm_head'"):
        fused_modules(["q_proj", "lm_head"])


def write_model(folder: Path, shape: dict[str, int]) -> Path:
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_model_the_engine_can_load_passes(tmp_path: Path) -> None:
    check_model(write_model(tmp_path, {"hidden_size": 576, "num_attention_heads": 9}))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden_size": 64, "num_attention_heads": 4}, "head_dim 16 kills the engine"),
        ({"hidden_size": 64, "num_attention_heads": 2, "head_dim": 48}, "head_dim 48"),
    ],
)
def test_a_head_that_kills_the_engine_is_refused(tmp_path: Path, shape: dict[str, int], said: str) -> None:
    with pytest.raises(EngineUnfit, match=said):
        check_model(write_model(tmp_path, shape))


def test_a_missing_model_or_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnfit, match=r"model\.path"):
        check_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineUnfit, match="no weights"):
        check_model(tmp_path)
