"""The trainable model: a frozen base and one LoRA, always in eval mode with dropout 0.

Invariant: whatever runs under other weights (the reference, an older state), the policy's own weights are back afterwards,
also when the pass raised. P positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from feedback.manifest import CONFIG, WEIGHTS
from feedback.training_section import LoraSettings
from online_trainer.update.batch import Pack

State = dict[str, torch.Tensor]
"""LoRA tensors by their PEFT names, float32, detached copies."""

_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.25}
"""Mean distance in nats that passes of other shapes may make on ids that mean nothing (measured in bfloat16: .07)."""


class PolicyError(RuntimeError):
    """The model cannot be trained as configured; the text says which check failed."""


def load_base(model_dir: Path, *, dtype: torch.dtype) -> PreTrainedModel:
    """The base model from disk, without touching a network."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True)
    return model.eval()


class Policy:
    """A base model under one adapter. `state()` and `load()` move the adapter; the base never changes."""

    def __init__(self, base: PreTrainedModel, lora: LoraSettings, *, seed: int) -> None:
        refuse_unservable(lora)
        self.lora = lora
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._peft: Any = get_peft_model(base, lora_config(lora))
        self._peft.eval()
        causal = self._peft.get_base_model()
        self._trunk, self._head = causal.base_model, causal.get_output_embeddings()
        self._causal = causal
        self._named = {
            _peft_name(name): parameter
            for name, parameter in sorted(self._peft.named_parameters())
            if parameter.requires_grad
        }
        if not self._named:
            raise PolicyError(f"no trainable parameter: the model has none of {', '.join(lora.targets)}")

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The trainable ones, in a fixed order."""
        return list(self._named.values())

    @property
    def width(self) -> int:
        return int(self._causal.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self._causal.config.vocab_size)

    @property
    def max_length(self) -> int:
        return int(self._causal.config.max_position_embeddings)

    def base_with_adapter(self) -> Any:
        """The causal model with the adapter in place, for samplers that keep its cache."""
        return self._causal

    def state(self) -> State:
        return {name: parameter.detach().clone() for name, parameter in self._named.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy in place, so that an optimizer keeps pointing at its parameters. PolicyError when names or shapes differ."""
        shapes = {name: value.shape for name, value in state.items()}
        if shapes != {name: parameter.shape for name, parameter in self._named.items()}:
            raise PolicyError("the adapter's tensors are not those of this model and LoRA")
        for name, parameter in self._named.items():
            parameter.copy_(state[name])

    @contextmanager
    def under(self, state: Mapping[str, torch.Tensor] | None) -> Iterator[None]:
        """Other adapter weights for a while; None is the bare base model."""
        if state is None:
            with self._peft.disable_adapter():
                yield
            return
        own = self.state()
        try:
            self.load(state)
            yield
        finally:
            self.load(own)

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Last hidden states [P, D]. Rows are padded on the right, where a causal model cannot look: no mask is needed."""
        states_BTD = self._trunk(input_ids=pack.ids_BT, use_cache=False).last_hidden_state
        return states_BTD[pack.row_P, pack.position_P]  # type: ignore[no-any-return]

    def log_softmax(self, hidden_PD: torch.Tensor, temperature_P: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [P, V] of the distribution that is sampled at these temperatures, float32."""
        logits_PV = self._head(hidden_PD).float() / temperature_P[:, None]
        return functional.log_softmax(logits_PV, dim=-1)

    @torch.no_grad()
    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at T = 1 of every id from index 1 on."""
        row = torch.tensor([list(ids)])
        hidden_PD = self._trunk(input_ids=row, use_cache=False).last_hidden_state[0, :-1]
        logp_PV = self.log_softmax(hidden_PD, torch.ones(len(hidden_PD)))
        return logp_PV.gather(1, row[0, 1:, None])[:, 0].tolist()

    @torch.no_grad()
    def check(self) -> None:
        """Start-up self-checks: the head is where we think, nothing is random, padding is inert, a zero adapter is the base."""
        ids = [(7 * at + 3) % self.vocabulary for at in range(min(50, self.max_length))]
        short = ids[: max(2, len(ids) // 10)]
        ours = self.score(ids)
        _require(ours == self.score(ids), "two passes of the same ids differ: something is random")
        whole = functional.log_softmax(self._causal(torch.tensor([ids])).logits[0, :-1].float(), dim=-1)
        theirs = whole.gather(1, torch.tensor(ids)[1:, None])[:, 0]
        loose = _ROUNDING[self._head.weight.dtype]
        _require(
            _apart(ours, theirs.tolist()) <= loose, "the output head is not applied as the model applies it"
        )
        _require(_apart(self.score(short), ours[: len(short) - 1]) <= loose, "later ids change earlier ones")
        zero = {
            name: torch.zeros_like(p) if "lora_B" in name else p.detach() for name, p in self._named.items()
        }
        with self.under(zero):
            adapted = self.score(ids)
        with self.under(None):
            base = self.score(ids)
        _require(adapted == base, "a zero adapter is not the base model: ratio is not 1, KL is not 0")


def lora_config(lora: LoraSettings) -> LoraConfig:
    """What vLLM can serve: no dropout, no bias, no saved modules."""
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=sorted(lora.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def refuse_unservable(lora: LoraSettings) -> None:
    """A LoRA on embeddings or head would untie them, and no engine would serve it."""
    if bad := {"lm_head", "embed_tokens"} & set(lora.targets):
        raise PolicyError(f"training.lora.targets: {', '.join(sorted(bad))} cannot carry an adapter")


def write_adapter(folder: Path, state: Mapping[str, torch.Tensor], *, lora: LoraSettings, base: str) -> None:
    """The PEFT files, the same bytes for the same state (PEFT's own writer orders a set)."""
    config = lora_config(lora).to_dict()
    config |= {
        "target_modules": sorted(lora.targets),
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, sort_keys=True, indent=1, default=str))
    save_file({name: value.contiguous() for name, value in state.items()}, folder / WEIGHTS)


def read_adapter(folder: Path) -> State:
    """The tensors of an adapter folder."""
    return dict(load_file(folder / WEIGHTS))


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """A hash of the tensors, to tell one adapter from another whatever it is called."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _peft_name(name: str) -> str:
    """PEFT's file name of a parameter: without the adapter's own name."""
    return name.replace(".default.", ".")


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Mean distance of two rows of log-probabilities, nats."""
    return fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise PolicyError(text)
