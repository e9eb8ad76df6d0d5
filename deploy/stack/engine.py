"""The command line of a vLLM OpenAI server for an agent. Pure: the same inputs give the same command.

The base answers under `<agent>-000000`; nothing else ever answers under an adapter's name.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedback.agent_file import AgentFile

# Champion, candidate, incoming, draining, holdout (design 5).
ADAPTER_SLOTS = 5
_ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# vLLM fuses projections; it must be told its own names or a narrow adapter gains nothing (measured: 2-3 times the tokens).
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "o_proj": "o_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}


class EngineUnfit(ValueError):
    """The engine cannot serve this agent; the text names the setting."""


@dataclass(frozen=True)
class EngineOptions:
    """What an operator decides about the engine that `ratchet up` starts."""

    port: int
    dtype: str
    threads: int
    max_sequences: int
    cache_mib: int


def engine_command(agent: AgentFile, options: EngineOptions) -> tuple[str, ...]:
    """Arguments of the server process. Raises EngineUnfit."""
    lora = agent.training.lora
    return (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(options.port)),
        *("--model", str(agent.model.path), "--served-model-name", agent.base_version),
        *("--dtype", options.dtype, "--max-model-len", str(agent.model.max_context)),
        *("--max-num-seqs", str(options.max_sequences)),
        *("--kv-cache-memory-bytes", str(options.cache_mib * 2**20)),
        # Recorded log-probs are those of the distribution that was sampled (temperature, top-p, top-k included).
        *("--logprobs-mode", "processed_logprobs"),
        *("--enable-lora", "--max-loras", str(ADAPTER_SLOTS), "--max-cpu-loras", str(ADAPTER_SLOTS + 3)),
        *("--max-lora-rank", str(allowed_rank(lora.r))),
        *("--lora-target-modules", *fused_modules(lora.targets)),
        # LoRA switches compilation off on a CPU anyway; eager with a fixed cache size also skips the warm-up.
        "--enforce-eager",
        "--enable-prefix-caching",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        # The model's own generation_config.json must not change what a request asks for.
        *("--generation-config", "vllm"),
    )


def engine_environment(options: EngineOptions) -> Mapping[str, str]:
    """Variables the server needs on top of the caller's."""
    return {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        # Unbound threads move to whichever core the trainer leaves free; `auto` would pin them to one.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads),
        # Scheduler and model in one process: one import of vLLM and 1 GB less (up in 81 s instead of 125 s, measured).
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def allowed_rank(rank: int) -> int:
    """The smallest rank the server accepts that holds `rank`."""
    for allowed in _ALLOWED_RANKS:
        if rank <= allowed:
            return allowed
    raise EngineUnfit(f"training.lora.r: {rank} is above the engine's largest rank {_ALLOWED_RANKS[-1]}")


def fused_modules(targets: Sequence[str]) -> tuple[str, ...]:
    """The server's names for the trainer's modules, in a stable order. Raises EngineUnfit."""
    unknown = [target for target in targets if target not in _FUSED]
    if unknown:
        raise EngineUnfit(f"training.lora.targets: the engine cannot serve an adapter on {unknown[0]!r}")
    return tuple(dict.fromkeys(_FUSED[target] for target in targets))


def check_model(folder: Path) -> None:
    """Raise EngineUnfit unless the folder holds a model the engine can load."""
    config = folder / "config.json"
    if not config.exists():
        raise EngineUnfit(
            f"no model in {folder} (config.json is missing); name one in the agent file's model.path"
        )
    if not any(folder.glob("*.safetensors")):
        raise EngineUnfit(f"no weights in {folder} (*.safetensors)")
    shape = json.loads(config.read_text())
    heads = shape.get("num_attention_heads", 1)
    head_dim = shape.get("head_dim") or shape.get("hidden_size", 0) // heads
    if head_dim % 32:
        raise EngineUnfit(
            f"{config}: head_dim {head_dim} kills the engine on a CPU; it must be a multiple of 32"
        )
