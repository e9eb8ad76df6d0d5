"""Supervised training of a small causal model, resumable at any step.

Invariant: what a step does depends only on its seed, its number and the saved state, so a run that was killed and
resumed ends with the weights of a run that was not. B rows, T tokens, N counted tokens, D hidden, V vocabulary;
a mask is True where a token counts, and the one-token shift happens in `token_loss` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

CLIP = 1.0
SMOOTHING = 0.9
PART_TOKENS = 512


@dataclass(frozen=True)
class Batch:
    ids_BT: torch.Tensor
    mask_BT: torch.Tensor


@dataclass(frozen=True)
class Stage:
    """One stretch of training: linear warm-up to `peak`, then a cosine down to `floor` of it at the last step."""

    name: str
    steps: int
    peak: float
    warmup: int = 30
    floor: float = 0.03

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


AfterStep = Callable[[Stage, int, float, int], None]
"""Called with the stage, the steps done, the last loss and the padded tokens of the last batch."""


def token_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Summed cross-entropy of the counted tokens; padding lies on the right, so no attention mask is needed."""
    counted_BT = batch.mask_BT[:, 1:]
    logits_NV = model.lm_head(hidden_at(model.model, batch.ids_BT[:, :-1], counted_BT))
    return functional.cross_entropy(logits_NV.float(), batch.ids_BT[:, 1:][counted_BT], reduction="sum")


def hidden_at(trunk: Any, ids_BT: torch.Tensor, counted_BT: torch.Tensor) -> torch.Tensor:
    """The last hidden states of a Llama trunk at the counted positions alone, [N, D].

    Nothing reads the other positions of the last layer, so its wide part is spared there: a tenth of the work.
    """
    hidden_BTD = trunk.embed_tokens(ids_BT)
    positions_1T = torch.arange(ids_BT.shape[1])[None]
    rotary = trunk.rotary_emb(hidden_BTD, position_ids=positions_1T)
    *layers, last = trunk.layers
    for layer in layers:
        hidden_BTD = layer(hidden_BTD, position_embeddings=rotary, position_ids=positions_1T)
    mixed_ND = attend_at(last.self_attn, last.input_layernorm(hidden_BTD), counted_BT, rotary=rotary)
    hidden_ND = hidden_BTD[counted_BT] + mixed_ND
    normed_ND = trunk.norm(hidden_ND + last.mlp(last.post_attention_layernorm(hidden_ND)))
    return cast(torch.Tensor, normed_ND)


def attend_at(
    attention: Any, hidden_BTD: torch.Tensor, counted_BT: torch.Tensor, *, rotary: Any
) -> torch.Tensor:
    """Causal self-attention, projected out at the counted positions alone."""
    shape = (*hidden_BTD.shape[:2], -1, attention.head_dim)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (project(hidden_BTD).view(shape).transpose(1, 2) for project in projections)
    query, key = apply_rotary_pos_emb(query, key, *rotary)
    seen_BHTd = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return cast(torch.Tensor, attention.o_proj(seen_BHTd.transpose(1, 2)[counted_BT].flatten(1)))


class Learner:
    """A model, its optimizer, and the steps done and last smoothed loss of each stage.

    The masters are float32 whatever the products are in. A step's rows are shared out in parts of fixed size, one
    single-threaded worker each: on a busy machine a worker that is held up does not stop the other at every
    product, and the sum is taken in the order of the parts, so it never depends on who was faster.
    """

    def __init__(self, model: Any, *, bfloat16: bool, workers: int) -> None:
        self.model = model.train()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
        self.bfloat16 = bfloat16
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self.done: dict[str, int] = {}
        self.losses: dict[str, float] = {}

    def learn(self, batch: Batch, *, rate: float) -> float:
        """One step; returns the mean loss of the counted tokens before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        counted = int(batch.mask_BT[:, 1:].sum())
        measured = list(self.pool.map(lambda part: self.measure(part, counted), parts_of(batch)))
        for parameter, first, *others in zip(self.parameters, *(grads for _, grads in measured), strict=True):
            parameter.grad = reduce(torch.Tensor.add_, others, first)
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sum(loss for loss, _ in measured)

    def measure(self, part: Batch, counted: int) -> tuple[float, tuple[torch.Tensor, ...]]:
        """A part's share of the step's mean loss, and its gradient."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bfloat16):
            loss = token_loss(self.model, part) / counted
        return float(loss.detach()), torch.autograd.grad(loss, self.parameters)

    def save(self, path: Path) -> None:
        """Write the whole state to a neighbour, then put it in place."""
        state = {
            "done": self.done,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        beside = path.with_suffix(".part")
        torch.save(state, beside)
        beside.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.losses = state["done"], state["losses"]


def run_stage(learner: Learner, stage: Stage, batches: Callable[[int], Batch], *, after: AfterStep) -> None:
    """Take the steps of `stage` that are not done yet; `batches` maps a step's number to its batch."""
    for step in range(learner.done.get(stage.name, 0), stage.steps):
        batch = batches(step)
        loss = learner.learn(batch, rate=stage.rate(step))
        before = learner.losses.get(stage.name, loss)
        learner.losses[stage.name] = SMOOTHING * before + (1 - SMOOTHING) * loss
        learner.done[stage.name] = step + 1
        after(stage, step + 1, loss, int(batch.ids_BT.numel()))


def parts_of(batch: Batch) -> list[Batch]:
    """Runs of rows of about PART_TOKENS tokens that have something to count."""
    rows = max(1, PART_TOKENS // batch.ids_BT.shape[1])
    pairs = zip(torch.split(batch.ids_BT, rows), torch.split(batch.mask_BT, rows), strict=True)
    return [Batch(ids, mask) for ids, mask in pairs if bool(mask[:, 1:].any())]


def step_generator(seed: int, stage: str, step: int) -> torch.Generator:
    """The randomness of one step, the same whenever the step is taken."""
    mixed = seed * 1_000_003 + sum(ord(c) * 131**i for i, c in enumerate(stage)) * 10_007 + step
    return torch.Generator().manual_seed(mixed % 2**63)
