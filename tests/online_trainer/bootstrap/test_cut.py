"""A cut changes numbers, never the tokens of a text that was kept."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from online_trainer.bootstrap.cut import Vocabulary, add_control_tokens, cut_model, cut_vocabulary
from online_trainer.bootstrap.source import Source

KEPT_WORDS = ["Lima", " Lima", " weather", "flights(", " 24", " Delta", ",", " nights", " hotel", "136", "."]
FIRST = 259


def cut(tokenizer_json: str) -> tuple[Tokenizer, Tokenizer, Vocabulary]:
    """Whole and cut tokenizer: the bytes, the pieces of the kept words, and two new control tokens."""
    whole_json = add_control_tokens(tokenizer_json, ("<tool_call>", "</tool_call>"))
    whole = Tokenizer.from_str(whole_json)
    used = {number for word in KEPT_WORDS for number in whole.encode(word).ids}
    vocabulary = cut_vocabulary(whole_json, used, first=FIRST)
    return whole, Tokenizer.from_str(vocabulary.tokenizer_json), vocabulary


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(KEPT_WORDS), max_size=12))
def test_a_text_of_kept_tokens_is_only_renumbered(tokenizer_json: str, words: list[str]) -> None:
    whole, small, vocabulary = cut(tokenizer_json)
    text = "".join(words)
    before = whole.encode(text).ids
    if all(number in vocabulary.numbers for number in before):
        assert small.encode(text).ids == [vocabulary.numbers[number] for number in before]
    assert small.decode(small.encode(text).ids) == text


def test_words_of_the_dialogues_are_kept_whole_and_rare_ones_fall_to_pieces(tokenizer_json: str) -> None:
    whole, small, vocabulary = cut(tokenizer_json)
    for word in KEPT_WORDS:
        assert small.encode(word).tokens == whole.encode(word).tokens
    assert len(whole.encode(" travel").ids) < len(small.encode(" travel").ids)
    assert small.decode(small.encode(" travel desk").ids) == " travel desk"
    assert len(vocabulary.origins) < whole.get_vocab_size()


def test_only_merges_whose_three_strings_remain_are_kept_and_each_token_can_be_made(
    tokenizer_json: str,
) -> None:
    model = json.loads(cut(tokenizer_json)[2].tokenizer_json)["model"]
    made = {left + right for left, right in model["merges"]}
    for left, right in model["merges"]:
        assert {left, right, left + right} <= set(model["vocab"])
    assert {token for token in model["vocab"] if model["vocab"][token] >= FIRST} <= made
    assert sorted(model["vocab"].values()) == list(range(len(model["vocab"])))


def test_call_markers_become_single_tokens_and_start_at_the_mean_of_their_pieces(
    tokenizer_json: str, source: Source
) -> None:
    whole, small, vocabulary = cut(tokenizer_json)
    pieces = Tokenizer.from_str(tokenizer_json).encode("<tool_call>").ids
    [number] = small.encode("<tool_call>").ids
    assert len(pieces) > 1 and vocabulary.origins[number] == tuple(pieces)
    [before] = whole.encode("<tool_call>").ids
    assert vocabulary.numbers[before] == number
    rows = source.model.get_input_embeddings().weight
    model = cut_model(source.model, vocabulary.origins, layers=(0, 3))
    assert torch.allclose(model.get_input_embeddings().weight[number], rows[pieces].mean(dim=0))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_with_every_layer_and_some_rows_the_model_says_the_same_of_the_kept_tokens(
    tokenizer_json: str, source: Source
) -> None:
    whole, _, vocabulary = cut(tokenizer_json)
    before = whole.encode("flights(Lima, 24 Delta.").ids
    after = [vocabulary.numbers[number] for number in before]
    kept = [origin[0] for origin in vocabulary.origins if len(origin) == 1]
    model = cut_model(source.model, vocabulary.origins, layers=(0, 1, 2, 3))
    right = source.model(input_ids=torch.tensor([before])).logits[0][:, kept]
    assert torch.allclose(model(input_ids=torch.tensor([after])).logits[0, :, : len(kept)], right, atol=1e-5)


def test_layers_are_taken_in_the_order_given(source: Source) -> None:
    origins = [(number,) for number in range(source.model.config.vocab_size)]
    small = cut_model(source.model, origins, layers=(1, 3))
    for new, old in enumerate((1, 3)):
        taken, left = small.model.layers[new], source.model.model.layers[old]
        assert torch.equal(taken.mlp.up_proj.weight, left.mlp.up_proj.weight)
        assert taken.self_attn.layer_idx == new


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
def test_old_control_tokens_keep_their_numbers(tokenizer_json: str, token: str) -> None:
    whole, small, _ = cut(tokenizer_json)
    assert small.token_to_id(token) == whole.token_to_id(token)
    assert small.encode(f"Lima{token}").ids[-1] == small.token_to_id(token)
