"""Three that must agree: the engine, the trainer, and the sampler that measures held-out success outside the engine."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from deploy.evaluate import Desk
from feedback.agent_file import AgentFile
from feedback.manifest import WEIGHTS, seal
from feedback.probe import distance
from feedback.schemas import AdapterRef
from online_trainer.policy import Policy, load_base
from online_trainer.probe import probe_prompts
from online_trainer.publish import write_candidate
from online_trainer.sampler import BatchedSampler, SampledTurn
from serving.engines.adapter_cache import AdapterCache, fetch_from_mlflow
from serving.engines.adapters import SLOTS
from serving.engines.engine import Engine
from serving.engines.replica import Refused, Replica
from tools.template import load_template
from tools.toolbox import Toolbox, ToolLimits

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

AGREES = 0.02
"""Mean nats a sampled token: an engine in bfloat16 is .009 from float32 on the desk model, one in float32 1e-5."""


@pytest.fixture(scope="module")
def policy(desk_agent: AgentFile) -> Policy:
    """The desk model under an adapter that does something."""
    base = load_base(desk_agent.model.path, dtype=torch.float32)
    policy = Policy(base, desk_agent.training.lora, seed=0)
    draw = torch.Generator().manual_seed(7)
    policy.load(
        {
            name: value + 0.02 * torch.randn(value.shape, generator=draw) if "lora_B" in name else value
            for name, value in policy.state().items()
        }
    )
    return policy


def sampled(agent: AgentFile, policy: Policy) -> list[SampledTurn]:
    """Held-out conversations as `deploy.evaluate` samples them."""
    template = load_template(agent.model.template, agent.model.path)
    toolbox = Toolbox.load(
        agent.tools, ToolLimits(agent.limits.tool_s, agent.limits.tool_output_tokens), template.count
    )
    sampler = BatchedSampler(
        policy.base_with_adapter(),
        template,
        temperature=1.0,
        max_new_tokens=agent.model.max_completion,
        max_context=agent.model.max_context,
    )
    desks = [Desk(agent, template, toolbox, task_seed=task) for task in range(4)]
    return [turn for turns in sampler.run(desks, seeds=range(4)) for turn in turns]


def on_engine(url: str, ask: Callable[[Engine], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession() as session:
            return await ask(Engine(url, session))

    return asyncio.run(run())


def replica_of(engine: Engine, agent: AgentFile) -> Replica:
    prompt = probe_prompts(agent)[0]
    return Replica(engine, base_version=agent.base_version, check_prompt=prompt, slots_needed=SLOTS)


def candidate(folder: Path, agent: AgentFile, policy: Policy, name: str) -> AdapterRef:
    final = folder / name
    digest = write_candidate(policy, final, probe=probe_prompts(agent), base_version=agent.base_version)
    return AdapterRef(version=name, uri=f"file://{final}", digest=digest)


def cache_in(folder: Path) -> AdapterCache:
    return AdapterCache(folder, fetch_from_mlflow("unused"))


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "adapter"])
def test_the_engine_gives_sampled_tokens_the_sampler_s_and_the_trainer_s_log_probabilities(
    engine: str, desk_agent: AgentFile, policy: Policy, tmp_path: Path, adapted: bool
) -> None:
    with policy.under(policy.state() if adapted else None):
        turns = sampled(desk_agent, policy)
        ids = [[*turn.prompt_ids, *turn.token_ids] for turn in turns]
        trainer = [policy.score(row)[-len(turn.token_ids) :] for row, turn in zip(ids, turns, strict=True)]
    model = f"travel-desk-00010{int(adapted)}"

    async def ask(found: Engine) -> list[list[float]]:
        if adapted:
            ref = candidate(tmp_path, desk_agent, policy, model)
            replica = replica_of(found, desk_agent)
            await replica.refresh()
            await replica.serve(ref, cache_in(tmp_path).folder(ref))
        return [await found.score(row, model=model if adapted else desk_agent.base_version) for row in ids]

    scored = on_engine(engine, ask)
    theirs = [row[-len(turn.token_ids) :] for row, turn in zip(scored, turns, strict=True)]
    assert sum(len(turn.token_ids) for turn in turns) > 100
    assert distance([turn.logprobs for turn in turns], trainer) < 1e-4
    assert distance(theirs, trainer) < AGREES


def test_nan_is_refused_before_the_engine_hears_of_it(
    engine: str, desk_agent: AgentFile, policy: Policy, tmp_path: Path
) -> None:
    ref = candidate(tmp_path, desk_agent, policy, "travel-desk-000110")
    folder = tmp_path / ref.version
    tensors = load_file(folder / WEIGHTS)
    first = sorted(tensors)[0]
    tensors[first] = np.full_like(tensors[first], np.nan)
    save_file(tensors, folder / WEIGHTS)
    ref = ref.model_copy(update={"digest": seal(folder)})
    with pytest.raises(Refused, match="finite"):
        cache_in(tmp_path / "home").folder(ref)
    names = [card.name for card in on_engine(engine, lambda found: found.models())]
    assert ref.version not in names


def test_an_adapter_that_the_engine_runs_without_effect_is_refused(
    engine: str, desk_agent: AgentFile, policy: Policy, tmp_path: Path
) -> None:
    """The weights say next to nothing, the probe says that they did much: what a mis-loaded adapter looks like."""
    ref = candidate(tmp_path, desk_agent, policy, "travel-desk-000111")
    folder = tmp_path / ref.version
    tensors = load_file(folder / WEIGHTS)
    save_file({name: value * 1e-3 for name, value in tensors.items()}, folder / WEIGHTS)
    ref = ref.model_copy(update={"digest": seal(folder)})

    async def ask(found: Engine) -> None:
        replica = replica_of(found, desk_agent)
        await replica.refresh()
        await replica.serve(ref, cache_in(tmp_path / "home").folder(ref))

    with pytest.raises(Refused, match="no effect on this engine"):
        on_engine(engine, ask)


def test_the_base_model_stays_the_base_in_a_batch_with_more_adapters_than_slots(
    engine: str, desk_agent: AgentFile, policy: Policy, tmp_path: Path
) -> None:
    """Without our plugin a CPU's vLLM answers the base's requests there through its last slot."""
    prompt = probe_prompts(desk_agent)[0]
    refs = [
        candidate(tmp_path, desk_agent, policy, f"travel-desk-00012{number}") for number in range(SLOTS + 2)
    ]

    async def ask(found: Engine) -> tuple[list[float], list[list[float]]]:
        alone = await found.score(prompt, model=desk_agent.base_version)
        for ref in refs:
            await found.load(ref.version, str(tmp_path / ref.version))
            await found.score(prompt, model=ref.version)  # the first use moves it into a slot
        names = [name for number in range(8) for name in (desk_agent.base_version, refs[number % 2].version)]
        scored = await asyncio.gather(
            *(found.score([*prompt, number], model=name) for number, name in enumerate(names))
        )
        for ref in refs:
            await found.unload(ref.version)
        return alone, [row[: len(alone)] for row in scored[::2]]

    alone, beside = on_engine(engine, ask)
    assert distance([alone] * len(beside), beside) < AGREES
