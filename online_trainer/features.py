"""One pass of the frozen reference over episodes: hidden states for the KL, and from them what critic and judge read.

Invariant: `state_TF` of a turn holds nothing from its first sampled id on (critics/state.py guards it); `answer_TG` does.
T turns, D hidden, F = D + side facts, G = 2 D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from feedback.schemas import Experience
from online_trainer.critics.state import SIDE_FACTS, require_before_action, side_facts, state_positions
from online_trainer.policy import Policy, State
from online_trainer.update.batch import Batch, Row, lay_out, pack

STORED = torch.float16
"""Features are kept in half precision, from the first use on, so that a resumed trainer reads what it wrote."""


@dataclass(frozen=True)
class Features:
    """What is kept of an episode's turns."""

    state_TF: torch.Tensor
    answer_TG: torch.Tensor


@dataclass(frozen=True)
class Survey:
    """Hidden states of every turn of some episodes: [n + 1, D], those that predict its n ids and the one after the last."""

    hidden: Mapping[tuple[str, int], torch.Tensor]

    def reference_ND(self, batch: Batch) -> torch.Tensor:
        """The reference's hidden states at a batch's trained tokens, in its order."""
        return torch.cat([self.hidden[turn][:-1] for turn in batch.turns])

    def features(self, experience: Experience, *, gamma: float) -> Features:
        """State and answer of every turn."""
        turns = experience.turns
        hidden = [self.hidden[experience.episode_id, number] for number in range(len(turns))]
        side_TS = torch.tensor([side_facts(experience, number, gamma=gamma) for number in range(len(turns))])
        state_TD = torch.stack([states_ND[0] for states_ND in hidden])
        answer_TG = torch.stack([torch.cat([states_ND.mean(0), states_ND[-1]]) for states_ND in hidden])
        return Features(torch.cat([state_TD, side_TS], dim=1).to(STORED), answer_TG.to(STORED))


def widths(policy: Policy) -> tuple[int, int, int]:
    """(D, side facts, G)."""
    return policy.width, SIDE_FACTS, 2 * policy.width


@torch.no_grad()
def survey(
    policy: Policy, experiences: Sequence[Experience], *, reference: State | None, token_budget: int
) -> Survey:
    """Run the reference (None: the bare base) over these episodes once."""
    ordered = sorted(experiences, key=lambda experience: experience.episode_id)
    rows = [row for e in ordered for row in lay_out(e, max_length=policy.max_length)]
    spans = [(row.episode_id, span) for row in rows for span in row.spans]
    lengths = [span.stop - span.start + 1 for _, span in spans]
    hidden_PD = torch.zeros((sum(lengths), policy.width))
    with policy.under(reference):
        for part in pack(rows, _positions, token_budget=token_budget):
            hidden_PD[part.index_P] = policy.hidden(part).float()
    pieces = torch.split(hidden_PD, lengths)
    return Survey(
        {(episode_id, span.turn): piece for (episode_id, span), piece in zip(spans, pieces, strict=True)}
    )


def _positions(row: Row) -> list[int]:
    """From the last position before each turn to its last id."""
    first_N = torch.tensor([span.start for span in row.spans])
    seen_N = state_positions(first_N)
    require_before_action(seen_N, first_N)
    return [
        at for seen, span in zip(seen_N.tolist(), row.spans, strict=True) for at in range(seen, span.stop)
    ]
