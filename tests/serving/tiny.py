"""A byte-level tokenizer with the desk's control tokens: any text can be spelled, any character can be split."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "t"), ("i", "n"), ("e", "r"))


def tiny_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*CONTROLS, *alphabet, *(left + right for left, right in MERGES)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROLS])
    return tokenizer


def write_model(folder: Path) -> Path:
    """A model folder with a tokenizer and no weights: all that serving reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
