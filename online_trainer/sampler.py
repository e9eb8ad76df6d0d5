"""Samples many conversations at once outside the engine, each keeping its key-value cache from turn to turn.

Invariant: a conversation's tokens depend on the model, its own ids and its own seed alone, not on who shares the
batch. A rows at work, W new tokens a row (padded on the left), T positions, K key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import Cache

from tools.template import Template


@dataclass(frozen=True)
class SampledTurn:
    """One completion: exact ids, and the log-probability of each under the distribution it was drawn from."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: Literal["stop", "length"]


Partner = Callable[[SampledTurn | None], Sequence[int] | None]
"""The other side of a conversation. Called with None for the first prompt, then with each turn: it returns the ids
to go on with (results or the next message, ending with an opened turn), or None when the conversation is over."""


@dataclass
class Slot:
    """A conversation at work: `ids` are all of its ids so far, the last `unread` of them not yet in the cache."""

    number: int
    partner: Partner
    draw: torch.Generator
    ids: list[int]
    unread: int
    prompt: int
    logprobs: list[float] = field(default_factory=list)
    turns: list[SampledTurn] = field(default_factory=list)


class BatchedSampler:
    """Drives conversations through one causal model; `temperature` 0 is greedy (log-probabilities then at 1)."""

    def __init__(
        self,
        model: Any,
        template: Template,
        *,
        temperature: float,
        max_new_tokens: int,
        max_context: int = 1024,
        batch: int = 64,
    ) -> None:
        if temperature < 0 or max_new_tokens < 1 or batch < 1:
            raise ValueError("temperature must be at least 0, max_new_tokens and batch at least 1")
        self._model, self._stop_ids = model, frozenset(template.stop_ids)
        self._temperature, self._max_new = temperature, max_new_tokens
        self._max_context, self._batch = max_context, batch

    @torch.inference_mode()
    def run(self, partners: Sequence[Partner], *, seeds: Sequence[int]) -> list[list[SampledTurn]]:
        """Every conversation to its end; the turns of each, in the order of `partners`."""
        waiting = iter(list(enumerate(zip(partners, seeds, strict=True))))
        done: list[list[SampledTurn]] = [[] for _ in partners]
        cache = RowCache(min(self._batch, len(partners)), self._max_context)
        slots: list[Slot | None] = [None] * cache.rows
        while True:
            for row, slot in enumerate(slots):
                if slot is None and (fresh := self._begin(waiting)):
                    slots[row] = fresh
            busy = [(row, slot) for row, slot in enumerate(slots) if slot is not None]
            if not busy:
                return done
            for row, slot in self._advance(due(busy), cache):
                done[slot.number], slots[row] = slot.turns, None

    def _begin(self, waiting: Iterable[tuple[int, tuple[Partner, int]]]) -> Slot | None:
        for number, (partner, seed) in waiting:
            ids = partner(None)
            if ids:
                draw = torch.Generator().manual_seed(seed)
                return Slot(number, partner, draw, list(ids), unread=len(ids), prompt=len(ids))
        return None

    def _advance(self, chosen: list[tuple[int, Slot]], cache: RowCache) -> list[tuple[int, Slot]]:
        """Read what each has not read yet, draw a token each, and return the conversations that are over."""
        fits = [(row, slot) for row, slot in chosen if len(slot.ids) < self._max_context]
        logits_AV = self._read(fits, cache) if fits else torch.empty(0)
        over = [pair for pair in chosen if pair not in fits]
        for (row, slot), logits_V in zip(fits, logits_AV, strict=True):
            slot.unread = 0
            token, logprob = draw_token(logits_V, temperature=self._temperature, generator=slot.draw)
            slot.ids.append(token)
            slot.logprobs.append(logprob)
            slot.unread = 1
            sampled = len(slot.ids) - slot.prompt
            if (token in self._stop_ids or sampled >= self._max_new) and not self._go_on(slot, token):
                over.append((row, slot))
        return over

    def _go_on(self, slot: Slot, last: int) -> bool:
        """Hand the finished turn to the partner and take what follows; False when nothing does."""
        reason: Literal["stop", "length"] = "stop" if last in self._stop_ids else "length"
        prompt, sampled = slot.ids[: slot.prompt], slot.ids[slot.prompt :]
        turn = SampledTurn(tuple(prompt), tuple(sampled), tuple(slot.logprobs), reason)
        slot.turns.append(turn)
        following = slot.partner(turn)
        if not following:
            return False
        slot.ids += following
        slot.unread += len(following)
        slot.prompt, slot.logprobs = len(slot.ids), []
        return True

    def _read(self, chosen: list[tuple[int, Slot]], cache: RowCache) -> torch.Tensor:
        """Logits after the last id of each chosen conversation, [A, V] float32."""
        width = max(slot.unread for _, slot in chosen)
        ids_AW = torch.tensor([[0] * (width - s.unread) + s.ids[len(s.ids) - s.unread :] for _, s in chosen])
        ends_A = torch.tensor([len(slot.ids) for _, slot in chosen])
        place_AW = ends_A[:, None] - width + torch.arange(width)
        real_AW = torch.arange(width) >= width - torch.tensor([slot.unread for _, slot in chosen])[:, None]
        cache.aim(
            torch.tensor([row for row, _ in chosen]), place_AW.where(real_AW, cache.spare), int(ends_A.max())
        )
        place_AW = place_AW.where(real_AW, 0)
        seen_AWT = torch.arange(int(ends_A.max())) <= place_AW[:, :, None]
        bias_A1WT = torch.zeros(seen_AWT.shape).masked_fill(~seen_AWT, torch.finfo(torch.float32).min)[
            :, None
        ]
        answer = self._model(
            input_ids=ids_AW,
            attention_mask=bias_A1WT.to(self._model.dtype),
            position_ids=place_AW,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_AV: torch.Tensor = answer.logits[:, -1].float()
        return logits_AV


def due(busy: list[tuple[int, Slot]]) -> list[tuple[int, Slot]]:
    """Who goes next: those in the middle of a turn, unless at least half have something longer to read."""
    reading = [pair for pair in busy if pair[1].unread > 1]
    return reading if 2 * len(reading) >= len(busy) else [pair for pair in busy if pair[1].unread == 1]


def draw_token(
    logits_V: torch.Tensor, *, temperature: float, generator: torch.Generator
) -> tuple[int, float]:
    """One id by inverting the cumulative distribution at a uniform number, and its log-probability."""
    logprobs_V = (logits_V / (temperature or 1.0)).log_softmax(dim=-1)
    if temperature == 0:
        token = int(logprobs_V.argmax())
    else:
        below = torch.rand((), generator=generator, dtype=torch.float64)
        cumulative_V = logprobs_V.double().exp().cumsum(dim=-1)
        token = min(
            int(torch.searchsorted(cumulative_V, below * cumulative_V[-1], right=True)), len(logits_V) - 1
        )
    return token, float(logprobs_V[token])


class RowCache(Cache):  # type: ignore[misc]
    """Keys and values of `rows` conversations of different lengths; `aim` says which rows and places come next."""

    def __init__(self, rows: int, positions: int) -> None:
        super().__init__(layers=[])
        self.rows, self.spare = rows, positions
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def aim(self, rows_A: torch.Tensor, place_AW: torch.Tensor, length: int) -> None:
        """The next pass writes its tokens at `place_AW` (padding at `spare`) and reads places below `length`."""
        self._rows_A, self._place_AW, self._length = rows_A, place_AW, length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take [A, K, W, D] in, give [A, K, T, D] back."""
        if layer_idx == len(self._kept):
            _, heads, _, size = key_states.shape
            shape = (self.rows, self.spare + 1, heads, size)
            self._kept.append((key_states.new_zeros(shape), value_states.new_zeros(shape)))
        keys, values = self._kept[layer_idx]
        keys[self._rows_A[:, None], self._place_AW] = key_states.transpose(1, 2)
        values[self._rows_A[:, None], self._place_AW] = value_states.transpose(1, 2)
        return self._read(keys), self._read(values)

    def _read(self, kept: torch.Tensor) -> torch.Tensor:
        return kept[:, : self._length].index_select(0, self._rows_A).transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length
