"""The sliding window in ids: what is kept is a slice of what was recorded, so nothing is rendered again.

Pure. The opening message always stays; then the newest interactions, as many as fit.
"""

from collections.abc import Sequence


def fit(
    ids: Sequence[int], starts: Sequence[int], *, keep: int, budget: int
) -> tuple[list[int], list[int]] | None:
    """(ids, starts) within the budget, dropping the oldest interactions; None when even the newest does not fit.

    `starts[i]` is where interaction i begins in `ids`; everything before `starts[0]` is the opening message. At most
    `keep` interactions stay once anything has to go.
    """
    if len(ids) <= budget:
        return list(ids), list(starts)
    head = list(ids[: starts[0]])
    for first in range(max(1, len(starts) - keep), len(starts)):
        cut = starts[first] - len(head)
        if len(ids) - cut <= budget:
            return head + list(ids[starts[first] :]), [start - cut for start in starts[first:]]
    return None
