"""What the trainer says about an update: the Update message, a Credit per episode, the metrics of the MLflow run.

Invariant: ids and order are functions of the update's inputs, so that an update made again after a crash says the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from feedback.schemas import (
    CREDITS,
    UPDATES,
    Credit,
    Experience,
    TurnCredit,
    Update,
)
from online_trainer.assign import Assigned
from online_trainer.state import Letter
from online_trainer.update.batch import Row
from online_trainer.update.step import Step

TRL_NAMES = {
    "k3_old": "policy/approxkl_avg",
    "kl_ref": "objective/kl",
    "clip_fraction": "policy/clipfrac_avg",
    "loss": "loss/policy_avg",
    "critic_loss": "loss/value_avg",
    "ratio": "val/ratio",
    "lr": "lr",
    "episodes": "episode",
    "ess": "sampling/effective_sample_size",
    "dropped": "sample/dropped_stale_total",
}


def update_id(agent: str, number: int, episode_ids: Sequence[str]) -> str:
    """The same for the same batch at the same place in the line."""
    text = "\0".join([agent, str(number), *episode_ids])
    return "up_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def metrics(measures: Mapping[str, float]) -> dict[str, float]:
    """Under the names that TRL's users know; the others keep their own."""
    return {TRL_NAMES.get(name, name): value for name, value in measures.items()}


def update_letter(update: Update) -> Letter:
    return Letter(topic=UPDATES, key=update.agent, value=update.to_bytes().decode(), at=update.at)


def credit_letter(
    experience: Experience,
    assigned: Assigned,
    rows: Sequence[Row],
    *,
    agent: str,
    update: str,
    unused: Mapping[tuple[str, int], str],
    at: int,
) -> Letter:
    """What every turn of an episode was credited, or why it was not trained."""
    masked = {span.turn: span.unused for row in rows for span in row.spans}
    advantage, reward = assigned.advantage[experience.episode_id], assigned.reward[experience.episode_id]
    turns = tuple(
        TurnCredit(
            response_id=priced.response_id,
            turn=number,
            advantage=advantage[number],
            reward=reward[number],
            channels=priced.channels,
            unused=masked.get(number) or unused.get((experience.episode_id, number)),
        )
        for number, priced in enumerate(experience.turns)
    )
    credit = Credit(
        agent=agent,
        episode_id=experience.episode_id,
        revision=experience.revision,
        update_id=update,
        turns=turns,
        at=at,
    )
    return Letter(topic=CREDITS, key=experience.episode_id, value=credit.to_bytes().decode(), at=at)


def untrained_letter(experience: Experience, *, agent: str, reason: str, at: int) -> Letter:
    """Why the policy never trains on an episode."""
    turns = tuple(
        TurnCredit(response_id=priced.response_id, turn=number, channels=priced.channels, unused=reason)
        for number, priced in enumerate(experience.turns)
    )
    credit = Credit(
        agent=agent,
        episode_id=experience.episode_id,
        revision=experience.revision,
        update_id="",
        turns=turns,
        at=at,
    )
    return Letter(topic=CREDITS, key=experience.episode_id, value=credit.to_bytes().decode(), at=at)


def step_measures(step: Step) -> dict[str, float]:
    """What the update measured, under the names of `trust.Measures`, and what the climb did."""
    statistics = step.climb.statistics
    return {
        **step.outcome.measures.as_dict(),
        "scale": step.outcome.scale,
        "loss": step.climb.loss,
        "steps": float(step.climb.steps),
        "ratio": statistics.ratio_sum / statistics.tokens if statistics.tokens else 1.0,
        "dropped": float(len(step.dropped)),
        "rater_share": step.rater_share,
        **step.parity.measures(),
    }
