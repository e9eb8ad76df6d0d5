"""Reading, judging, valuing and crediting a batch: what happens before the policy moves.

Invariant: none of it depends on the policy's own weights, only on the frozen reference.
"""

from __future__ import annotations

from online_trainer.assign import Assigned, assign, train_critic
from online_trainer.features import Survey, survey, widths
from online_trainer.judge import Judgement, judge, train_judge
from online_trainer.returns import Returns, known_returns
from online_trainer.take import Taken
from online_trainer.trainer import Trainer


def study(trainer: Trainer, taken: Taken) -> Survey:
    """The frozen reference reads the batch, and some of the other rated episodes for the reward model and the critic."""
    replay, settings = trainer.replay, trainer.parts.agent.training
    others = replay.rated_unseen(settings.batch.max_episodes // 2)
    read = list({e.episode_id: e for e in (*others, *taken.experiences)}.values())
    seen = survey(trainer.policy, read, reference=trainer.reference, token_budget=settings.token_budget)
    replay.learn(seen, read)
    return seen


def reward(trainer: Trainer, taken: Taken) -> Judgement:
    """Train the reward model anew on all thumbs, price what nobody rated."""
    settings = trainer.parts.agent.training.reward_model
    _, _, width = widths(trainer.policy)
    seed = trainer.progress.seed * 7919 + trainer.progress.update
    model, trial = train_judge(trainer.replay, features=width, settings=settings, seed=seed)
    lessons = [trainer.replay.lessons[e.episode_id] for e in taken.experiences]
    return judge(model, trial, trainer.replay, lessons, centre=trainer.progress.centre, settings=settings)


def value(trainer: Trainer) -> Returns | None:
    """Teach the critic: Monte-Carlo pre-training before the first policy step, a few steps before each later one."""
    agent, progress = trainer.parts.agent, trainer.progress
    known = known_returns(trainer.replay, weights=agent.rewards.weights, training=agent.training)
    settings = agent.training.critic
    steps = settings.steps_per_update if progress.critic_pretrained else settings.pretrain_steps
    train_critic(trainer.critic, known, steps=steps, generator=trainer.generator(1))
    progress.critic_pretrained = progress.critic_pretrained or known is not None
    return known


def credit(trainer: Trainer, taken: Taken, judgement: Judgement, known: Returns | None) -> Assigned:
    """One advantage per turn of the batch."""
    agent = trainer.parts.agent
    return assign(
        [trainer.replay.lessons[e.episode_id] for e in taken.experiences],
        trainer.replay,
        trainer.critic,
        known,
        judgement.rho,
        weights=agent.rewards.weights,
        training=agent.training,
        scale=trainer.progress.scale,
        generator=trainer.generator(2),
    )
