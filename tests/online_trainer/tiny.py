"""A tiny random Llama and dialogues sampled from it: what the trainer's tests learn from.

Ids are plain numbers; no tokenizer is involved. A dialogue is `[system, user] -> [choice, END]`, asked twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from feedback.agent_file import AgentFile
from feedback.bus import MemoryBus
from feedback.schemas import EXPERIENCES, Channels, Experience, PricedTurn, Sampling, Turn
from online_trainer.checkpoint import Checkpoints, Lease
from online_trainer.gate import expected_adapter
from online_trainer.monitor import Monitor
from online_trainer.policy import Policy, load_base
from online_trainer.publish import Publisher
from online_trainer.registry import Registry
from online_trainer.state import Progress
from online_trainer.trainer import Parts, Trainer, open_trainer

VOCABULARY = 40
SYSTEM, USER, OPEN, END = 1, 2, 3, 4
GOOD = range(10, 25)
BASE = "tiny-desk-000000"
NOWHERE = "http://127.0.0.1:9"


def make_model(folder: Path) -> Path:
    """Two layers, hidden 64, head dimension 32, on disk."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def agent_file(model: Path, **training: Any) -> AgentFile:
    """Small batches, a LoRA of rank 4 on attention, a learning rate that shows."""
    settings: dict[str, Any] = {
        "lora": {"r": 4, "alpha": 8, "targets": ["q_proj", "v_proj", "o_proj"]},
        "batch": {"min_episodes": 24, "max_episodes": 24, "min_rated": 8, "min_users": 4},
        "optimizer": {"lr_start": 2e-3},
        "critic": {"hidden": 8, "pretrain_steps": 20},
        "reward_model": {"hidden": 8},
        "token_budget": 256,
    }
    return AgentFile.model_validate(
        {
            "agent": "tiny-desk",
            "model": {"path": model, "max_context": 256},
            "system": "x",
            "training": settings | training,
            "offer": {"min_updates": 2},
        }
    )


def new_policy(agent: AgentFile) -> Policy:
    return Policy(load_base(agent.model.path, dtype=torch.float32), agent.training.lora, seed=3)


@torch.no_grad()
def sample(
    policy: Policy, prompts: Sequence[Sequence[int]], generator: torch.Generator
) -> list[tuple[int, float]]:
    """One id after each prompt (all of one length) and its log-probability at T = 1."""
    logits_BV = policy.base_with_adapter()(torch.tensor([list(prompt) for prompt in prompts])).logits[:, -1]
    logp_BV = torch.log_softmax(logits_BV.float(), -1)
    drawn_B1 = torch.multinomial(logp_BV.exp(), 1, generator=generator)
    return list(zip(drawn_B1[:, 0].tolist(), logp_BV.gather(1, drawn_B1)[:, 0].tolist(), strict=True))


def priced(
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[float],
    *,
    index: int = 0,
    version: str = BASE,
    channels: Channels | None = None,
    sampling: Sampling | None = None,
) -> PricedTurn:
    """A turn that ends its interaction."""
    text = " ".join(map(str, tokens))
    turn = Turn(
        adapter_version=version,
        prompt_ids=tuple(prompt),
        token_ids=tuple(tokens),
        logprobs=tuple(logprobs),
        raw_text=text,
        shown_text=text,
        stop_reason="stop",
    )
    return PricedTurn(
        response_id=f"chatcmpl-{index}",
        interaction=index,
        ends_interaction=True,
        turn=turn,
        sampling=sampling or Sampling(),
        channels=channels or Channels(),
    )


def experience(
    number: int,
    turns: Sequence[PricedTurn],
    *,
    thumb: int | None,
    rater: str | None = None,
    revision: int = 1,
    version: str = BASE,
    **changes: Any,
) -> Experience:
    """A closed episode, rated or not, past its cut-off at time 1000."""
    episode = f"ep_{number:06d}"
    fields: dict[str, Any] = {
        "id": hashlib.sha256(f"{episode}:{revision}".encode()).hexdigest(),
        "revision": revision,
        "agent": "tiny-desk",
        "episode_id": episode,
        "key_owner": "k",
        "rater": rater or f"rater-{number % 30}",
        "arm": "champion",
        "propensity": 1.0,
        "generation": 0,
        "adapter_version": version,
        "turns": tuple(turns),
        "user_texts": ("x",) * len(turns),
        "ratings": int(thumb is not None),
        "thumb": thumb,
        "outcome": thumb,
        "outcome_source": None if thumb is None else "thumb",
        "outcome_reward": None if thumb is None else 2.0 * thumb - 1.0,
        "trainable": True,
        "started_at": 0,
        "closed_at": 500,
        "cutoff_at": 1000,
    }
    return Experience.model_validate(fields | changes)


def dialogues(
    policy: Policy, count: int, *, first: int = 0, seed: int = 0, version: str = BASE
) -> list[Experience]:
    """Two turns each; success is a GOOD first choice. Two of three are rated, and the thumb tells the truth."""
    generator = torch.Generator().manual_seed(seed)
    numbers = range(first, first + count)
    prompts = [[SYSTEM, USER, 5 + number % 5, OPEN] for number in numbers]
    firsts = sample(policy, prompts, generator)
    thens = [[*prompt, drawn, END, USER, 6, OPEN] for prompt, (drawn, _) in zip(prompts, firsts, strict=True)]
    seconds = sample(policy, thens, generator)
    episodes = []
    for number, prompt, (one, one_p), then, (two, two_p) in zip(
        numbers, prompts, firsts, thens, seconds, strict=True
    ):
        turns = (
            priced(prompt, [one], [one_p], index=0, version=version),
            priced(then, [two], [two_p], index=1, version=version),
        )
        thumb = int(one in GOOD) if number % 3 else None
        episodes.append(experience(number, turns, thumb=thumb, version=version))
    return episodes


def publish_experiences(bus: MemoryBus, experiences: Sequence[Experience]) -> None:
    for item in experiences:
        bus.append(EXPERIENCES, item.episode_id, item.to_bytes(), timestamp_ms=item.closed_at)


def good_share(policy: Policy) -> float:
    """Probability of a GOOD first choice, averaged over the five users."""
    prompts = torch.tensor([[SYSTEM, USER, user, OPEN] for user in range(5, 10)])
    with torch.no_grad():
        logits_BV = policy.base_with_adapter()(prompts).logits[:, -1]
    return float(torch.softmax(logits_BV.float(), -1)[:, list(GOOD)].sum(dim=1).mean())


def open_tiny(
    home: Path,
    agent: AgentFile,
    bus: MemoryBus,
    *,
    lease: Lease,
    registry: Registry | None = None,
    clock: Callable[[], int] = lambda: 2000,
    boundary: Callable[[str], None] = lambda _: None,
) -> Trainer:
    """A trainer on a memory bus; without a registry MLflow is an address where nobody answers."""
    publisher = Publisher(
        registry or Registry(NOWHERE, agent.agent, timeout_s=1),
        home / "adapters",
        agent=agent.agent,
        retry_s=0.05,
    )
    parts = Parts(
        agent=agent,
        bus=bus,
        checkpoints=Checkpoints(home / "checkpoints", keep=5, lease=lease),
        publisher=publisher,
        monitor=Monitor(),
        expected=expected_adapter(agent.model.path, agent.training.lora),
        adapters=home / "adapters",
        probe=[[SYSTEM, USER, 5, OPEN, 12, END], [SYSTEM, USER, 6, OPEN, 30], [USER, 7, OPEN, 9, 4, 4]],
        clock=clock,
        boundary=boundary,
    )
    fresh = Progress.fresh(agent, seed=0, threads=torch.get_num_threads(), dtype="torch.float32")
    return open_trainer(parts, new_policy(agent), fresh=fresh, reference=None)
