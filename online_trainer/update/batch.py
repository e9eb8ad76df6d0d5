"""Experiences as training rows on the exact sampled ids. The mask comes from what was recorded as sampled, never from text.

Invariant: the one-token shift (position p predicts the id at p + 1) happens in this file only. B rows, T ids,
P positions of hidden states, N trained tokens; flat arrays are row-major in the order of `Batch.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from feedback.schemas import Experience, PricedTurn

MOST_PADDING = 0.1
"""Share of a forward pass that may be padding, where a second row makes the choice."""


class NothingToTrain(ValueError):
    """No row holds a trainable token."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where one turn's sampled ids sit in its row, and how they were sampled. `unused` says why they do not count."""

    turn: int
    start: int
    stop: int
    temperature: float
    mu: tuple[float, ...]
    unused: str | None = None

    @property
    def counts(self) -> bool:
        return self.unused is None


@dataclass(frozen=True, slots=True)
class Row:
    """Ids that the model saw and sampled in one unbroken line."""

    episode_id: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def trained(self) -> int:
        return sum(span.stop - span.start for span in self.spans if span.counts)


def lay_out(experience: Experience, *, max_length: int) -> tuple[Row, ...]:
    """Turns merge only where the next prompt begins with the previous prompt + tokens exactly; else a new row starts."""
    rows: list[Row] = []
    for number, priced in enumerate(experience.turns):
        prompt = priced.turn.prompt_ids
        ids = prompt + priced.turn.token_ids
        span = _span(priced, number, max_length=max_length)
        last = rows[-1] if rows else None
        if last is not None and prompt[: len(last.ids)] == last.ids:
            rows[-1] = Row(experience.episode_id, ids, (*last.spans, span))
        else:
            rows.append(Row(experience.episode_id, ids, (span,)))
    return tuple(rows)


def mark(rows: Iterable[Row], unused: Mapping[tuple[str, int], str]) -> tuple[Row, ...]:
    """The same rows with more turns that do not count, each with its reason."""
    return tuple(
        replace(
            row,
            spans=tuple(
                replace(span, unused=span.unused or unused.get((row.episode_id, span.turn)))
                for span in row.spans
            ),
        )
        for row in rows
    )


def _span(priced: PricedTurn, number: int, *, max_length: int) -> Span:
    turn, sampling = priced.turn, priced.sampling
    start = len(turn.prompt_ids)
    stop = start + len(turn.token_ids)
    unused = priced.untrainable or turn.flaw or sampling.untrainable_reason()
    if unused is None and start == 0:
        unused = "no_prompt"
    if unused is None and stop > max_length:
        unused = "too_long"
    return Span(number, start, stop, sampling.temperature, turn.logprobs, unused)


@dataclass(frozen=True)
class Batch:
    """Rows with at least one trained token, and their trained tokens as flat arrays of length N."""

    rows: tuple[Row, ...]
    target_N: torch.Tensor
    mu_N: torch.Tensor
    temperature_N: torch.Tensor
    turn_N: torch.Tensor
    row_N: torch.Tensor
    turns: tuple[tuple[str, int], ...]
    refused: int
    total_ids: int

    @property
    def tokens(self) -> int:
        return len(self.target_N)


def build(rows: Iterable[Row]) -> Batch:
    """Rows in a fixed order (episode, place in it), so that the order of arrival changes nothing. Raises NothingToTrain."""
    given = sorted(rows, key=lambda row: (row.episode_id, row.spans[0].turn))
    kept = [row for row in given if row.trained]
    if not kept:
        raise NothingToTrain(f"none of {len(given)} rows holds a trainable token")
    counted = [(number, span) for number, row in enumerate(kept) for span in row.spans if span.counts]
    lengths = torch.tensor([span.stop - span.start for _, span in counted])
    return Batch(
        rows=tuple(kept),
        target_N=torch.tensor([i for row, span in counted for i in kept[row].ids[span.start : span.stop]]),
        mu_N=torch.tensor([value for _, span in counted for value in span.mu], dtype=torch.float32),
        temperature_N=torch.tensor([span.temperature for _, span in counted]).repeat_interleave(lengths),
        turn_N=torch.arange(len(counted)).repeat_interleave(lengths),
        row_N=torch.tensor([row for row, _ in counted]).repeat_interleave(lengths),
        turns=tuple((kept[row].episode_id, span.turn) for row, span in counted),
        refused=len(given) - len(kept),
        total_ids=sum(len(row.ids) for row in kept),
    )


@dataclass(frozen=True)
class Pack:
    """One forward pass: padded ids, the positions wanted from it, and where they belong in the flat order."""

    ids_BT: torch.Tensor
    row_P: torch.Tensor
    position_P: torch.Tensor
    index_P: torch.Tensor


def token_positions(row: Row) -> list[int]:
    """The position that predicts each trained id: the one before it."""
    return [at - 1 for span in row.spans if span.counts for at in range(span.start, span.stop)]


def pack(
    rows: Sequence[Row],
    wanted: Callable[[Row], list[int]],
    *,
    token_budget: int,
    only: Sequence[int] | None = None,
) -> list[Pack]:
    """Forward passes of at most `token_budget` padded ids, rows of like length together, ids cut after the last wanted one.

    `only` picks rows; `index_P` still counts over all of them. A row over the budget goes alone, and so does one that would
    bring more padding than a pass may have: on a CPU a pass costs what its ids cost.
    """
    positions = [wanted(row) for row in rows]
    first = [0]
    for found in positions:
        first.append(first[-1] + len(found))
    chosen = [number for number in (range(len(rows)) if only is None else only) if positions[number]]
    chosen.sort(key=lambda number: (-max(positions[number]), number))
    packs: list[Pack] = []
    group: list[int] = []
    filled = 0
    for number in chosen:
        length = max(positions[number]) + 1
        padded = (len(group) + 1) * (max(positions[group[0]]) + 1) if group else 0
        if padded > token_budget or filled + length < (1.0 - MOST_PADDING) * padded:
            packs.append(_pack(rows, positions, first, group))
            group, filled = [], 0
        group.append(number)
        filled += length
    return [*packs, _pack(rows, positions, first, group)] if group else packs


def _pack(rows: Sequence[Row], positions: list[list[int]], first: list[int], group: list[int]) -> Pack:
    width = max(positions[group[0]]) + 1
    ids_BT = torch.zeros((len(group), width), dtype=torch.long)
    for place, number in enumerate(group):
        ids = rows[number].ids[: max(positions[number]) + 1]
        ids_BT[place, : len(ids)] = torch.tensor(ids)
    counts = torch.tensor([len(positions[number]) for number in group])
    return Pack(
        ids_BT=ids_BT,
        row_P=torch.arange(len(group)).repeat_interleave(counts),
        position_P=torch.tensor([at for number in group for at in positions[number]]),
        index_P=torch.tensor([i for number in group for i in range(first[number], first[number + 1])]),
    )
