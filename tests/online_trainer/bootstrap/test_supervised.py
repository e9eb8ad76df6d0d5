"""The training loop: the loss is the plain one, a resumed run is the unbroken run, and copying can be learned."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from online_trainer.bootstrap.repeats import repeat_batch
from online_trainer.bootstrap.supervised import (
    Batch,
    Learner,
    Stage,
    parts_of,
    run_stage,
    step_generator,
    token_loss,
)

VOCABULARY = 40


def small_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def batch(step: int, rows: int = 6) -> Batch:
    return repeat_batch(VOCABULARY, rows=rows, length=32, generator=step_generator(1, "repeats", step))


def quiet(stage: Stage, done: int, loss: float, tokens: int) -> None:
    """Nobody watches."""


def learner(workers: int = 2) -> Learner:
    return Learner(small_model(), bfloat16=False, workers=workers)


def test_the_loss_is_the_cross_entropy_of_the_counted_tokens_under_the_whole_model() -> None:
    model, given = small_model(), batch(0)
    logits = model(input_ids=given.ids_BT).logits[:, :-1]
    each = functional.cross_entropy(logits.transpose(1, 2), given.ids_BT[:, 1:], reduction="none")
    right = (each * given.mask_BT[:, 1:]).sum()
    assert token_loss(model, given).item() == pytest.approx(right.item(), rel=1e-5)
    other_mask = Batch(given.ids_BT, ~given.mask_BT)
    assert token_loss(model, other_mask).item() != pytest.approx(right.item(), rel=1e-2)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 6e-4 / 30), (29, 6e-4), (30, 6e-4), (339.5, 6e-4 * 0.515), (649, 1.8e-5)]
)
def test_the_rate_warms_up_and_falls_as_a_cosine(step: float, rate: float) -> None:
    assert Stage("dialogues", 650, 6e-4).rate(step) == pytest.approx(rate, rel=1e-6)  # type: ignore[arg-type]


def test_a_run_cut_in_two_ends_with_the_same_weights(tmp_path: Path) -> None:
    stage = Stage("repeats", 6, 3e-3, warmup=2)
    whole, first, second = learner(), learner(), learner()
    run_stage(whole, stage, batch, after=quiet)

    class Killed(Exception):
        pass

    def save_at_three(stage: Stage, done: int, loss: float, tokens: int) -> None:
        if done == 3:
            first.save(tmp_path / "state.pt")
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        run_stage(first, stage, batch, after=save_at_three)
    second.load(tmp_path / "state.pt")
    run_stage(second, stage, batch, after=quiet)
    assert second.done == whole.done == {"repeats": 6} and second.losses == whole.losses
    for resumed, unbroken in zip(second.parameters, whole.parameters, strict=True):
        assert torch.equal(resumed, unbroken)


def test_the_number_of_workers_changes_nothing() -> None:
    one, two = learner(workers=1), learner(workers=2)
    losses = [[made.learn(batch(step, rows=40), rate=1e-3) for step in range(3)] for made in (one, two)]
    assert losses[0] == losses[1] and len(parts_of(batch(0, rows=40))) > 1
    for mine, other in zip(one.parameters, two.parameters, strict=True):
        assert torch.equal(mine, other)


def test_a_step_shared_out_in_parts_is_the_step_of_the_whole() -> None:
    made, given = learner(), batch(3, rows=40)
    counted = given.mask_BT[:, 1:].sum()
    right = torch.autograd.grad(token_loss(made.model, given) / counted, made.parameters)
    parts = [made.measure(part, int(counted)) for part in parts_of(given)]
    for number, gradient in enumerate(right):
        assert torch.allclose(sum(grads[number] for _, grads in parts), gradient, atol=1e-6)  # type: ignore[arg-type]


def test_what_is_shown_again_is_learned_and_what_does_not_count_is_not() -> None:
    made, given = learner(), batch(0, rows=2)
    first = made.learn(given, rate=1e-2)
    uncounted = Batch(given.ids_BT, ~given.mask_BT)
    for _ in range(40):
        last = made.learn(given, rate=1e-2)
    assert first > 3.5 and last < 0.5
    assert token_loss(made.model, uncounted).item() / int(uncounted.mask_BT[:, 1:].sum()) > 2
