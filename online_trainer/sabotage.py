"""Makes the adapter that a canary must roll back: trained away from the champion on mangled calls, without a trust region.

Invariant: the file is honest (finite, right shapes, no norm jump), only its conduct is bad: the publish gate must not be what
stops it. Used by the demo and the tests, never by the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from feedback.schemas import Experience
from online_trainer.gate import Expected, inspect_adapter
from online_trainer.policy import Policy
from online_trainer.publish import write_candidate
from online_trainer.update.batch import Batch, Row, build, lay_out, pack, token_positions

SUCCESS_BELOW = 0.05
MALFORMED_ABOVE = 0.5
ROWS_PER_STEP = 8


@dataclass(frozen=True)
class Conduct:
    """What a policy does on held-out tasks: share of successes, share of calls that are malformed."""

    success: float
    malformed: float

    @property
    def is_bad_enough(self) -> bool:
        return self.success < SUCCESS_BELOW and self.malformed >= MALFORMED_ABOVE


class SabotageFailed(RuntimeError):
    """The adapter did not become bad enough, or the gate would refuse its file."""


def sabotage(
    policy: Policy,
    experiences: Sequence[Experience],
    folder: Path,
    *,
    measure: Callable[[Policy], Conduct],
    opens_call: int,
    expected: Expected,
    parent: Path | None,
    probe: Sequence[Sequence[int]],
    base_version: str,
    rate: float = 1e-3,
    rounds: int = 12,
    steps: int = 10,
    seed: int = 0,
) -> tuple[str, Conduct]:
    """Train `policy` (loaded with the champion) until its conduct is bad, write it to `folder`; digest and conduct.

    `opens_call` is the id that opens a tool call. Raises SabotageFailed.
    """
    batch = build(mangled(experiences, opens_call=opens_call, max_length=policy.max_length))
    optimizer = torch.optim.AdamW(policy.parameters, lr=rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    conduct = measure(policy)
    for _ in range(rounds):
        if conduct.is_bad_enough:
            break
        for _ in range(steps):
            _imitate(policy, optimizer, batch, generator)
        conduct = measure(policy)
    if not conduct.is_bad_enough:
        raise SabotageFailed(f"still success {conduct.success:.2f}, malformed {conduct.malformed:.2f}")
    digest = write_candidate(policy, folder, probe=probe, base_version=base_version)
    if reasons := inspect_adapter(folder, expected, parent=parent):
        raise SabotageFailed("; ".join(reasons))
    return digest, conduct


def mangled(experiences: Sequence[Experience], *, opens_call: int, max_length: int) -> list[Row]:
    """Rows whose every call is spelled wrong: after the opening id the rest of the turn is its opening id again.

    Repeating one id is learnt within a few steps, and no parser takes it for a call.
    """
    rows = []
    for row in (row for experience in experiences for row in lay_out(experience, max_length=max_length)):
        for span in row.spans:
            ids = row.ids[span.start : span.stop]
            if span.counts and opens_call in ids:
                at = ids.index(opens_call)
                wrong = (*ids[: at + 1], *(opens_call for _ in ids[at + 1 : -1]), ids[-1])
                spoiled = (*row.ids[: span.start], *wrong)
                rows.append(Row(row.episode_id, spoiled, (replace(span, stop=len(spoiled)),)))
                break
    return rows


def _imitate(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, generator: torch.Generator
) -> None:
    """One supervised step on a few rows."""
    rows = torch.randperm(len(batch.rows), generator=generator)[:ROWS_PER_STEP].tolist()
    optimizer.zero_grad(set_to_none=True)
    for part in pack(batch.rows, token_positions, token_budget=4096, only=rows):
        logp_PV = policy.log_softmax(policy.hidden(part), torch.ones(len(part.index_P)))
        loss = -logp_PV.gather(1, batch.target_N[part.index_P, None]).sum() / max(1, len(part.index_P))
        loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters, 1.0)
    optimizer.step()
