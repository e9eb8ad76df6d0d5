"""Rows that can only be predicted by copying: random segments that come again and again.

They re-form the copying circuit that cutting layers out of a model disturbs. A mask is True where a token counts
(B rows, T tokens): every token but the first of a segment that the row has already shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from online_trainer.bootstrap.supervised import Batch

SEGMENTS = (3, 8)
SEGMENT_TOKENS = (2, 8)


def repeat_row(vocabulary: int, length: int, *, generator: torch.Generator) -> tuple[list[int], list[bool]]:
    """One row of `length` ids below `vocabulary`, and its mask."""
    segments = [
        numbers(vocabulary, between(SEGMENT_TOKENS, generator), generator)
        for _ in range(between(SEGMENTS, generator))
    ]
    shown: set[int] = set()
    ids: list[int] = []
    mask: list[bool] = []
    while len(ids) < length:
        chosen = numbers(len(segments), 1, generator)[0]
        ids += segments[chosen]
        mask += [False] + [chosen in shown] * (len(segments[chosen]) - 1)
        shown.add(chosen)
    return ids[:length], mask[:length]


def repeat_batch(vocabulary: int, *, rows: int, length: int, generator: torch.Generator) -> Batch:
    import torch

    from online_trainer.bootstrap.supervised import Batch

    drawn = [repeat_row(vocabulary, length, generator=generator) for _ in range(rows)]
    return Batch(
        ids_BT=torch.tensor([ids for ids, _ in drawn]),
        mask_BT=torch.tensor([mask for _, mask in drawn]),
    )


def numbers(below: int, count: int, generator: torch.Generator) -> list[int]:
    import torch

    return [int(n) for n in torch.randint(below, (count,), generator=generator)]


def between(bounds: tuple[int, int], generator: torch.Generator) -> int:
    low, high = bounds
    return low + numbers(high - low + 1, 1, generator)[0]
