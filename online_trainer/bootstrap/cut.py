"""Cuts a small model out of a larger one: a few layers, the tokens that are used, and single tokens for controls.

Invariant: a text whose tokens were all kept encodes to the same tokens before and after the cut, only renumbered.
It holds because every merge on the way to a kept token is kept too, in the old order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

KEPT_LAYERS = (0, 16, 17, 18, 29)
"""0 reads the embedding, 16 looks at the previous token, 17 and 18 at what followed last time, 29 writes the logits."""
FIRST_TOKENS = 2048
PAD, BEGIN, END = 0, 1, 2
"""`<|endoftext|>`, `<|im_start|>` and `<|im_end|>`: the first ids of the source, which the cut leaves alone."""


@dataclass(frozen=True)
class Vocabulary:
    """The cut tokenizer, old id to new id, and for each new id the old ids whose mean its embedding starts from."""

    tokenizer_json: str
    numbers: dict[int, int]
    origins: tuple[tuple[int, ...], ...]


def add_control_tokens(tokenizer_json: str, control: Sequence[str]) -> str:
    """The same tokenizer with each of `control` as one special token, numbered after the last id."""
    data = json.loads(tokenizer_json)
    known = {entry["content"] for entry in data["added_tokens"]}
    following = 1 + max([*data["model"]["vocab"].values(), *(entry["id"] for entry in data["added_tokens"])])
    for token in control:
        if token not in known:
            data["added_tokens"].append(special(token, following))
            following += 1
    return json.dumps(data, ensure_ascii=False)


def special(token: str, number: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": token, **flags}


def cut_vocabulary(tokenizer_json: str, used: Iterable[int], *, first: int = FIRST_TOKENS) -> Vocabulary:
    """Keep the first ids, the used ones, all their merge parents and every added token; number them anew."""
    data = json.loads(tokenizer_json)
    vocab: dict[str, int] = data["model"]["vocab"]
    merges = [tuple(pair) for pair in data["model"]["merges"]]
    text = {number: token for token, number in vocab.items()}
    wanted = {text[number] for number in {*range(first), *used} if number in text}
    kept = with_parents(wanted, {left + right: (left, right) for left, right in merges})
    order = sorted(kept, key=vocab.__getitem__)
    data["model"]["vocab"] = {token: new for new, token in enumerate(order)}
    data["model"]["merges"] = [[a, b] for a, b in merges if a in kept and b in kept and a + b in kept]
    origins: list[tuple[int, ...]] = [(vocab[token],) for token in order]
    numbers = {vocab[token]: new for new, token in enumerate(order)}
    for entry in sorted(data["added_tokens"], key=lambda entry: int(entry["id"])):
        if entry["content"] in kept:
            entry["id"] = data["model"]["vocab"][entry["content"]]
        else:
            numbers[entry["id"]] = entry["id"] = len(origins)
            origins.append(pieces(tokenizer_json, entry["content"]))
    return Vocabulary(json.dumps(data, ensure_ascii=False), numbers, tuple(origins))


def with_parents(tokens: set[str], parents: dict[str, tuple[str, str]]) -> set[str]:
    kept: set[str] = set()
    waiting = list(tokens)
    while waiting:
        token = waiting.pop()
        if token not in kept:
            kept.add(token)
            waiting.extend(parents.get(token, ()))
    return kept


def pieces(tokenizer_json: str, token: str) -> tuple[int, ...]:
    """The ids that `token` was written with before it became one."""
    from tokenizers import Tokenizer

    data = json.loads(tokenizer_json)
    data["added_tokens"] = [
        entry for entry in data["added_tokens"] if entry["content"] in data["model"]["vocab"]
    ]
    return tuple(Tokenizer.from_str(json.dumps(data)).encode(token, add_special_tokens=False).ids)


def cut_model(model: Any, origins: Sequence[Sequence[int]], *, layers: Sequence[int] = KEPT_LAYERS) -> Any:
    """A float32 Llama of the chosen layers and rows, its output tied to its embedding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    old = model.config.to_dict()
    shape = {key: old[key] for key in SHAPE}
    tokens = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
    size = {"num_hidden_layers": len(layers), "vocab_size": len(origins), "tie_word_embeddings": True}
    config = LlamaConfig(**shape, **size, **tokens)
    small = LlamaForCausalLM(config).float()
    weights = model.state_dict()
    with torch.no_grad():
        rows = weights["model.embed_tokens.weight"].float()
        embedding_VD = torch.stack([rows[list(old_ids)].mean(dim=0) for old_ids in origins])
        kept = {"model.embed_tokens.weight": embedding_VD, "model.norm.weight": weights["model.norm.weight"]}
        for new, layer in enumerate(layers):
            start = f"model.layers.{layer}."
            kept |= {
                f"model.layers.{new}.{k[len(start) :]}": v for k, v in weights.items() if k.startswith(start)
            }
        small.load_state_dict(kept | {"lm_head.weight": embedding_VD}, strict=True)
    small.tie_weights()
    return small


SHAPE = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
)
