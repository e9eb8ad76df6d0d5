"""Reading, judging, valuing and crediting a batch: what happens before the policy moves.

Invariant: none of it depends on the policy's own weights, only on the frozen reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from online_trainer.assign import Assigned, assign, train_critic
from online_trainer.bias import biases
from online_trainer.corrections import better_answers
from online_trainer.features import Survey, survey, widths
from online_trainer.judge import Judgement, judge, train_judge
from online_trainer.returns import Returns, known_returns
from online_trainer.reward_model import GOLD, RewardModel, seat_of
from online_trainer.take import Taken
from online_trainer.trainer import Trainer


def study(trainer: Trainer, taken: Taken) -> Survey:
    """The frozen reference reads the batch, and some of the other rated episodes for the reward model and the critic."""
    replay, settings = trainer.replay, trainer.parts.agent.training
    others = replay.rated_unseen(settings.batch.max_episodes // 2)
    read = list({e.episode_id: e for e in (*others, *taken.experiences)}.values())
    written = [
        answer
        for experience in read
        for answer in better_answers(experience, trainer.parts.spell, max_length=trainer.policy.max_length)
        if answer.episode_id not in replay.features
    ]
    for answer in written:
        replay.add(answer)
    read += written
    seen = survey(trainer.policy, read, reference=trainer.reference, token_budget=settings.token_budget)
    replay.learn(seen, read, gamma=settings.turn.gamma)
    return seen


def reward(trainer: Trainer, taken: Taken) -> Judgement:
    """Train the reward model anew on all thumbs, price what nobody rated."""
    settings = trainer.parts.agent.training.reward_model
    _, _, width = widths(trainer.policy)
    seed = trainer.progress.seed * 7919 + trainer.progress.update
    model, trial = train_judge(trainer.replay, features=width, settings=settings, seed=seed)
    lessons = [trainer.replay.lessons[e.episode_id] for e in taken.experiences]
    made = judge(model, trial, trainer.replay, lessons, centre=trainer.progress.centre, settings=settings)
    return _with_views(made, trainer, taken, model)


def _with_views(made: Judgement, trainer: Trainer, taken: Taken, model: RewardModel) -> Judgement:
    """What the new model makes of the batch's answers: because of their length or flattery, and as a gold judge."""
    answers = [
        (e, at) for e in taken.experiences for at, priced in enumerate(e.turns) if priced.ends_interaction
    ]
    if not answers:
        return made
    settings, replay = trainer.parts.agent.training.reward_model, trainer.replay
    answer_NG = torch.stack([replay.features[e.episode_id].answer_TG[at] for e, at in answers]).float()
    turns = [e.turns[at].turn for e, at in answers]
    score_N = model.scores(answer_NG).mean(0)
    bias = biases(
        score_N,
        [len(turn.token_ids) for turn in turns],
        [turn.shown_text for turn in turns],
        [e.thumb if at == replay.lessons[e.episode_id].outcome_turn else None for e, at in answers],
    )
    if not made.trial.trusts_gold(settings):
        return replace(made, bias=bias)
    pairs = zip(model.gold(answer_NG).tolist(), score_N.tolist(), strict=True)
    views = {
        (e.episode_id, at): view
        for (e, at), view in zip(answers, pairs, strict=True)
        if seat_of(e.rater, members=settings.members, gold_share=settings.holdout_raters) != GOLD
    }
    return replace(made, bias=bias, views=views)


@dataclass(frozen=True)
class Valued:
    """What the critic learned from, and its mean loss while it did."""

    known: Returns | None
    loss: float


def value(trainer: Trainer) -> Valued:
    """Teach the critic: Monte-Carlo pre-training before the first policy step, a few steps before each later one."""
    agent, progress = trainer.parts.agent, trainer.progress
    known = known_returns(trainer.replay, weights=agent.rewards.weights, training=agent.training)
    settings = agent.training.critic
    steps = settings.steps_per_update if progress.critic_pretrained else settings.pretrain_steps
    loss = train_critic(trainer.critic, known, steps=steps, generator=trainer.generator(1))
    progress.critic_pretrained = progress.critic_pretrained or known is not None
    return Valued(known, loss)


def credit(trainer: Trainer, taken: Taken, judgement: Judgement, valued: Valued) -> Assigned:
    """One advantage per turn of the batch."""
    agent = trainer.parts.agent
    made = assign(
        [trainer.replay.lessons[e.episode_id] for e in taken.experiences],
        trainer.replay,
        trainer.critic,
        valued.known,
        judgement.rho,
        weights=agent.rewards.weights,
        training=agent.training,
        scale=trainer.progress.scale,
        generator=trainer.generator(2),
    )
    return replace(made, critic_loss=valued.loss)
