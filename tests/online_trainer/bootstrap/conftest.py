"""A source small enough for tests: a byte-level tokenizer like SmolLM2's and a Llama of four thin layers."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM

from online_trainer.bootstrap.source import Source

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "I need a trip to Lima for 4 nights. What is the weather there?",
    "flights(Lima) hotels(Lima) weather(Oslo) calc(24+28*4) tool_call",
    "Flight 24 Delta, hotel 28 Hill. Total 136. Weather 21 rain.",
    "system user assistant tool You are a travel desk agent. Tools: flights(to) hotels(city)",
] * 3


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=420, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return str(tokenizer.to_str())


@pytest.fixture
def source(tokenizer_json: str) -> Source:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(json.loads(tokenizer_json)["model"]["vocab"]),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return Source(model=LlamaForCausalLM(config), tokenizer_json=tokenizer_json)
