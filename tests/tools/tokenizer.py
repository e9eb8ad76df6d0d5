"""A small real tokenizer for the tests: byte-level BPE with control tokens, trained on a few lines."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "<|im_start|>user\nPlan 4 nights in Lima<|im_end|>\n<tool_call>flights(Lima)</tool_call>",
    "<|im_start|>system tool assistant<|im_end|> <|endoftext|>",
    '{"name": "flights", "arguments": {"to": "Lima"}} <tool_response> </tool_response> <tools>',
] * 50


def save_tokenizer(folder: Path, *, call_markers: bool, special: bool = True) -> Path:
    """Write `tokenizer.json`. The corpus spells the markers, so their pieces merge as far as they can."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=CONTROLS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    markers = ["<tool_call>", "</tool_call>"] if call_markers else []
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(markers)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
