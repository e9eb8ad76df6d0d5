"""A zero adapter is the base bit for bit, padding is inert, and foreign weights never stay (I1; cases 37, 44, 45)."""

from pathlib import Path

import pytest
import torch
from torch import nn

from feedback.agent_file import AgentFile
from feedback.training_section import LoraSettings
from online_trainer.cpu import cpu_flags, has_bfloat16
from online_trainer.policy import (
    Policy,
    PolicyError,
    load_base,
    read_adapter,
    refuse_unservable,
    state_digest,
    write_adapter,
)
from online_trainer.update.batch import build, lay_out
from online_trainer.update.look import look
from tests.online_trainer.tiny import dialogues, new_policy

IDS = [1, 2, 7, 3, 15, 4, 2, 6, 3, 20]


def disturbed(policy: Policy) -> Policy:
    """A policy whose adapter does something."""
    generator = torch.Generator().manual_seed(5)
    policy.load({n: v + 0.05 * torch.randn(v.shape, generator=generator) for n, v in policy.state().items()})
    return policy


def test_a_zero_adapter_is_the_base_bit_for_bit(policy: Policy) -> None:
    own = policy.score(IDS)
    with policy.under(None):
        assert policy.score(IDS) == own


def test_an_adapter_that_does_something_is_not_the_base(policy: Policy) -> None:
    own = disturbed(policy).score(IDS)
    with policy.under(None):
        assert policy.score(IDS) != own
    assert policy.score(IDS) == own


def test_self_check_passes_and_fails_when_something_is_random(policy: Policy) -> None:
    policy.check()
    policy.base_with_adapter().model.layers[0].mlp.act_fn = nn.Sequential(nn.SiLU(), nn.Dropout(0.1).train())
    with pytest.raises(PolicyError, match="random"):
        policy.check()


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_self_check_passes_on_the_shipped_model_in_either_number_format(format: str) -> None:
    if format == "bfloat16" and not has_bfloat16(cpu_flags()):
        pytest.skip("this CPU only emulates bfloat16")
    base = load_base(Path("deploy/profiles/desk/model"), dtype=getattr(torch, format))
    Policy(base, LoraSettings(), seed=0).check()


def test_self_check_fails_when_later_ids_change_earlier_ones(policy: Policy) -> None:
    first = policy.base_with_adapter().model.layers[0]
    first.mlp.register_forward_hook(lambda _, __, out_BTD: out_BTD + out_BTD.mean(dim=1, keepdim=True))
    with pytest.raises(PolicyError, match="later ids"):
        policy.check()


@pytest.mark.parametrize("token_budget", [16, 64, 4096])
def test_log_probabilities_do_not_depend_on_the_pass_they_were_made_in(
    policy: Policy, token_budget: int
) -> None:
    rows = [row for item in dialogues(disturbed(policy), 6) for row in lay_out(item, max_length=256)]
    batch = build(rows)
    alone = torch.cat([look(policy, build([row]), token_budget=4096).logprob_N for row in batch.rows])
    together = look(policy, batch, token_budget=token_budget).logprob_N
    assert float((alone - together).abs().max()) < 1e-5


def test_trainer_sees_the_log_probabilities_that_were_sampled(policy: Policy) -> None:
    batch = build([row for item in dialogues(policy, 6) for row in lay_out(item, max_length=256)])
    seen = look(policy, batch, token_budget=64).logprob_N
    assert float((seen - batch.mu_N).abs().max()) < 1e-4


@pytest.mark.parametrize("reference", ["base", "frozen copy"])
def test_own_weights_are_back_even_when_the_reference_pass_fails(policy: Policy, reference: str) -> None:
    before = state_digest(disturbed(policy).state())
    own = policy.score(IDS)
    frozen = None if reference == "base" else {n: v * 2 for n, v in policy.state().items()}
    with pytest.raises(RuntimeError, match="half-way"), policy.under(frozen):
        assert policy.score(IDS) != own
        raise RuntimeError("half-way")
    assert state_digest(policy.state()) == before
    assert policy.score(IDS) == own
    assert all(parameter.requires_grad for parameter in policy.parameters)


def test_kl_to_a_frozen_copy_of_a_trained_start_is_zero(policy: Policy) -> None:
    start = disturbed(policy).state()
    own = policy.score(IDS)
    with policy.under(start):
        assert policy.score(IDS) == own


def test_an_adapter_on_the_head_is_refused() -> None:
    with pytest.raises(PolicyError, match="lm_head"):
        refuse_unservable(LoraSettings(targets=("q_proj", "lm_head")))


def test_a_target_that_the_model_lacks_is_refused(agent: AgentFile) -> None:
    base = load_base(agent.model.path, dtype=torch.float32)
    with pytest.raises((PolicyError, ValueError)):
        Policy(base, LoraSettings(targets=("no_such_proj",)), seed=0)


def test_wrong_shapes_are_refused_before_anything_is_copied(policy: Policy) -> None:
    before = state_digest(policy.state())
    with pytest.raises(PolicyError):
        policy.load({n: v[:1] for n, v in policy.state().items()})
    assert state_digest(policy.state()) == before


def test_the_same_state_is_written_as_the_same_bytes(
    policy: Policy, agent: AgentFile, tmp_path: Path
) -> None:
    state = disturbed(policy).state()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_adapter(tmp_path / name, state, lora=agent.training.lora, base="tiny-desk-000000")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in files)


def test_peft_itself_reads_what_was_written(policy: Policy, agent: AgentFile, tmp_path: Path) -> None:
    from peft import PeftModel

    write_adapter(tmp_path, disturbed(policy).state(), lora=agent.training.lora, base="tiny-desk-000000")
    loaded = PeftModel.from_pretrained(load_base(agent.model.path, dtype=torch.float32), tmp_path)
    logits = loaded(torch.tensor([IDS])).logits[0, :-1].float()
    theirs = torch.log_softmax(logits, -1).gather(1, torch.tensor(IDS)[1:, None])[:, 0]
    assert theirs.tolist() == pytest.approx(policy.score(IDS), abs=1e-5)
    other = new_policy(agent)
    other.load(read_adapter(tmp_path))
    assert other.score(IDS) == policy.score(IDS)
