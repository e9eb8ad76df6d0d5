"""The sampler outside the engine: exact log-probabilities, and tokens that no neighbour can change."""

import math
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from online_trainer.sampler import BatchedSampler, SampledTurn, draw_token
from tools.template import Desk

VOCABULARY, STOP = 24, 2
WORDS = {f"w{number}": number for number in range(VOCABULARY)} | {"<|im_start|>": 1, "<|im_end|>": STOP}


def template() -> Desk:
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="w0"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Desk(tokenizer.to_str())


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


class Talk:
    """Says its messages one after another."""

    def __init__(self, *messages: list[int]) -> None:
        self.left = list(messages)
        self.heard: list[SampledTurn] = []

    def __call__(self, turn: SampledTurn | None) -> list[int] | None:
        if turn is not None:
            self.heard.append(turn)
        return self.left.pop(0) if self.left else None


def talks() -> list[Talk]:
    return [
        Talk([3, 4, 5], [6], [7, 8]),
        Talk([9] * 11),
        Talk([10, 11], [12, 13, 14, 15, 16]),
        Talk([17, 3], [4], [5]),
    ]


def sampler(
    model: LlamaForCausalLM, *, temperature: float = 1.0, batch: int = 3, room: int = 200
) -> BatchedSampler:
    return BatchedSampler(
        model, template(), temperature=temperature, max_new_tokens=9, max_context=room, batch=batch
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_one_plain_pass_over_the_whole_conversation(
    model: LlamaForCausalLM, temperature: float
) -> None:
    for turns in sampler(model, temperature=temperature).run(talks(), seeds=[1, 2, 3, 4]):
        for turn in turns:
            ids = torch.tensor([[*turn.prompt_ids, *turn.token_ids]])
            logits = model(input_ids=ids).logits[0, len(turn.prompt_ids) - 1 : -1] / temperature
            right = logits.log_softmax(-1)[range(len(turn.token_ids)), list(turn.token_ids)]
            assert torch.allclose(torch.tensor(turn.logprobs), right, atol=1e-4)


def test_a_prompt_is_everything_said_before_it(model: LlamaForCausalLM) -> None:
    for talk, turns in zip(made := talks(), sampler(model).run(made, seeds=[1, 2, 3, 4]), strict=True):
        assert talk.heard == turns and len(turns) == {0: 3, 1: 1, 2: 2, 3: 3}[made.index(talk)]
        for before, after in pairwise(turns):
            assert (
                after.prompt_ids[: len(before.prompt_ids + before.token_ids)]
                == before.prompt_ids + before.token_ids
            )


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_neighbours_change_nothing(model: LlamaForCausalLM, batch: int) -> None:
    alone = [
        turn.token_ids for turns in sampler(model, batch=4).run(talks(), seeds=[1, 2, 3, 4]) for turn in turns
    ]
    shared = [
        turn.token_ids
        for turns in sampler(model, batch=batch).run(talks(), seeds=[1, 2, 3, 4])
        for turn in turns
    ]
    assert shared == alone


def test_greedy_takes_the_likeliest_and_needs_no_seed(model: LlamaForCausalLM) -> None:
    once, again = (sampler(model, temperature=0).run(talks(), seeds=seeds) for seeds in ([1] * 4, [2] * 4))
    assert once == again
    turn = once[1][0]
    logits = model(input_ids=torch.tensor([[*turn.prompt_ids, *turn.token_ids]])).logits[0, 10:-1]
    assert turn.token_ids == tuple(logits.argmax(-1).tolist())


def test_a_turn_ends_at_a_stop_token_or_at_its_bound(model: LlamaForCausalLM) -> None:
    turns = [turn for turns in sampler(model).run(talks() * 5, seeds=range(20)) for turn in turns]
    assert {turn.stop_reason for turn in turns} == {"stop", "length"}
    for turn in turns:
        assert STOP not in turn.token_ids[:-1] and (turn.token_ids[-1] == STOP) == (
            turn.stop_reason == "stop"
        )
        assert len(turn.token_ids) <= 9 and (turn.stop_reason == "stop" or len(turn.token_ids) == 9)


def test_a_conversation_without_room_is_over_and_the_others_go_on(model: LlamaForCausalLM) -> None:
    long, short = sampler(model, room=12).run([Talk([3] * 40), Talk([4, 5])], seeds=[1, 2])
    assert long == [] and len(short) == 1


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, math.log(3.0), math.log(6.0)])
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_token(logits, temperature=1.0, generator=generator) for _ in range(4000)]
    counts = [sum(token == number for token, _ in drawn) / 4000 for number in range(3)]
    assert counts == pytest.approx([0.1, 0.3, 0.6], abs=0.03)
    assert dict(drawn)[1] == pytest.approx(math.log(0.3), abs=1e-6)
