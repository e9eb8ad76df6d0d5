"""The comparing credit rules on a replay where every task was answered once."""

from __future__ import annotations

import pytest
import torch

from feedback.agent_file import AgentFile, Weights
from feedback.reward import progress
from feedback.schemas import Channels, Experience
from feedback.training_section import Training
from online_trainer.assign import Assigned, assign, outcome_of_the_silent
from online_trainer.credit.gae import Gae
from online_trainer.credit.scale import RunningScale
from online_trainer.critics.value import Critic
from online_trainer.features import Features
from online_trainer.lessons import Lesson, Replay
from online_trainer.returns import farms, known_returns, potential_of, reward_of
from online_trainer.rules import compare
from tests.online_trainer.tiny import experience, priced

EASY, HARD = 1.0, -1.0
RULES = ("proxmo", "groups")


def item(
    number: int,
    kind: float,
    outcome: float | None,
    *,
    turns: int = 2,
    outcome_turn: int | None = None,
    channels: Channels | None = None,
) -> tuple[Experience, float]:
    """An episode of one kind of task; episodes of one kind begin alike, and to the letter so."""
    made = [
        priced([1, int(kind) + 5, at], [2], [-1.0], index=at, channels=channels or Channels())
        for at in range(turns)
    ]
    made_of = experience(number, made, thumb=None, outcome_reward=outcome, outcome_turn=outcome_turn)
    return made_of, kind


def replay_of(items: list[tuple[Experience, float]]) -> Replay:
    replay = Replay()
    for each, kind in items:
        replay.add(each)
        state = torch.full((len(each.turns), 9), kind) + torch.arange(9) * 0.1
        state[:, 8] = torch.arange(len(each.turns)) * 0.01
        replay.features[each.episode_id] = Features(state, torch.zeros((len(each.turns), 8)))
    replay.unseen = {}
    return replay


def training_of(agent: AgentFile, **changes: object) -> Training:
    return agent.training.model_copy(update=changes)


def credited(
    batch: list[tuple[Experience, float]], others: list[tuple[Experience, float]], training: Training
) -> Assigned:
    replay = replay_of([*others, *batch])
    return assign(
        [Lesson.of(each) for each, _ in batch],
        replay,
        Critic(4, 5, settings=training.critic, seed=0),
        known_returns(replay, weights=Weights(), training=training),
        {},
        weights=Weights(),
        training=training,
        scale=RunningScale(),
        generator=torch.Generator().manual_seed(0),
    )


OTHERS = [
    *(item(n, EASY, 1.0) for n in range(20, 30)),
    *(item(n, HARD, -1.0) for n in range(30, 40)),
]


@pytest.mark.parametrize("credit", RULES)
def test_what_was_expected_is_worth_little_and_what_was_not_much(agent: AgentFile, credit: str) -> None:
    batch = [item(1, EASY, 1.0), item(2, EASY, -1.0), item(3, HARD, 1.0), item(4, HARD, -1.0)]
    found = credited(batch, OTHERS, training_of(agent, credit=credit))
    assert max(map(abs, found.advantage["ep_000001"])) < 0.35
    assert max(map(abs, found.advantage["ep_000004"])) < 0.35
    assert max(found.advantage["ep_000002"]) < -1.0
    assert min(found.advantage["ep_000003"]) > 1.0


def test_the_weights_and_the_baseline_worked_by_hand(agent: AgentFile) -> None:
    """A success where all ten others failed: p = 0, w = 1.05, G_0 = .99, b = -.99 and -1."""
    batch = [item(3, HARD, 1.0)]
    training = training_of(agent, credit="proxmo")
    found = credited(batch, OTHERS, training)
    got = [value * found.scale.value for value in found.advantage["ep_000003"]]
    assert got == pytest.approx([1.05 * 1.98 + 1.98, 1.05 * 1.98 + 2.0], rel=5e-3)
    half = training.model_copy(update={"proxmo": training.proxmo.model_copy(update={"omega": 0.5})})
    less = credited(batch, OTHERS, half)
    assert less.advantage["ep_000003"][0] * less.scale.value == pytest.approx(1.55 * 1.98, rel=5e-3)


def test_a_success_rate_counts_episodes_and_not_turns(agent: AgentFile) -> None:
    """Three short successes and a long failure: p = .75, a success weighs 1.000211 (by turns p would be .375)."""
    others = [item(n, EASY, 1.0, turns=1) for n in (20, 21, 22)] + [item(23, EASY, -1.0, turns=5)]
    training = training_of(agent, credit="proxmo")
    near = training.model_copy(update={"proxmo": training.proxmo.model_copy(update={"psa_tau": 1e3})})
    batch = [item(1, EASY, 1.0, turns=1)]
    replay = replay_of([*others, *batch])
    known = known_returns(replay, weights=Weights(), training=near)
    compared = compare([Lesson.of(batch[0][0])], replay, known, training=near)
    assert compared is not None
    assert float(compared.weight_E) == pytest.approx(1.000211, abs=5e-5)


@pytest.mark.parametrize("credit", RULES)
def test_an_episode_never_meets_itself(agent: AgentFile, credit: str) -> None:
    """Its own outcome moves no baseline of its own, and alone in the replay it has none."""

    def values(outcome: float, others: list[tuple[Experience, float]]) -> torch.Tensor:
        training = training_of(agent, credit=credit)
        batch = [item(1, EASY, outcome)]
        replay = replay_of([*others, *batch])
        known = known_returns(replay, weights=Weights(), training=training)
        compared = compare([Lesson.of(batch[0][0])], replay, known, training=training)
        assert compared is not None
        return compared.value_N

    assert torch.allclose(values(1.0, OTHERS), values(-1.0, OTHERS), atol=1e-6)
    assert values(1.0, []).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("credit", RULES)
def test_silence_and_courtesies_earn_nothing(agent: AgentFile, credit: str) -> None:
    batch = [item(1, EASY, None), item(2, HARD, 1.0, turns=3, outcome_turn=1)]
    found = credited(batch, OTHERS, training_of(agent, credit=credit))
    assert found.advantage["ep_000001"] == (0.0, 0.0)
    assert not found.carries_signal("ep_000001")
    first, second, courtesy = found.advantage["ep_000002"]
    assert min(first, second) > 0
    assert courtesy == 0.0


@pytest.mark.parametrize("credit", [*RULES, "gae", "monte_carlo"])
def test_nothing_is_known_at_first(agent: AgentFile, credit: str) -> None:
    batch = [item(1, EASY, None), item(2, HARD, None, channels=Channels(tools=-0.2))]
    found = credited(batch, [], training_of(agent, credit=credit))
    assert found.advantage["ep_000001"] == (0.0, 0.0)
    assert max(found.advantage["ep_000002"]) < 0


def test_a_state_that_nobody_else_was_in_has_the_episodes_part_alone(agent: AgentFile) -> None:
    training = training_of(agent, credit="groups")
    lone = [item(1, 3.0, 1.0)]
    found = credited(lone, OTHERS, training)
    whole, again = found.advantage["ep_000001"]
    assert whole == again > 0


def test_the_weak_critic_may_fall_back_on_like_states(agent: AgentFile) -> None:
    critic = agent.training.critic.model_copy(update={"fallback": "proximity"})
    batch = [item(1, EASY, 1.0), item(3, HARD, 1.0)]
    index = credited(batch, OTHERS, agent.training)
    near = credited(batch, OTHERS, training_of(agent, critic=critic))
    assert index.advantage["ep_000001"] == pytest.approx(index.advantage["ep_000003"])
    assert abs(near.advantage["ep_000001"][0]) < 0.1 < near.advantage["ep_000003"][0]


def test_centring_takes_the_batchs_mean_off_and_leaves_the_silent_alone(agent: AgentFile) -> None:
    turn = agent.training.turn.model_copy(update={"adv_norm": "mean_std"})
    batch = [item(1, EASY, 1.0), item(2, EASY, 1.0), item(3, EASY, -1.0), item(4, EASY, None)]
    plain = credited(batch, OTHERS, agent.training)
    found = credited(batch, OTHERS, training_of(agent, turn=turn))
    values = [value for turns in found.advantage.values() for value in turns]
    assert sum(values) == pytest.approx(0.0, abs=1e-5)
    assert abs(sum(value for turns in plain.advantage.values() for value in turns)) > 0.5
    assert found.advantage["ep_000004"] == (0.0, 0.0)


def with_gains(number: int, gains: list[float], outcome: float | None) -> Experience:
    turns = [
        priced([1, at], [2], [-1.0], index=at, channels=Channels(progress=gain))
        for at, gain in enumerate(gains)
    ]
    return experience(number, turns, thumb=None, outcome_reward=outcome)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_progress_alone_credits_no_turn_of_an_episode_nobody_reacted_to(
    agent: AgentFile, trusted: bool, lam: float
) -> None:
    """V is .4 everywhere, so V' = .4 - w Phi; gamma is 1."""
    turn = agent.training.turn.model_copy(update={"gamma": 1.0})
    training = training_of(agent, turn=turn)
    lesson = Lesson.of(with_gains(1, progress([0.0, 0.5, 1.0], gamma=1.0), None))
    weights = Weights()
    potential = torch.tensor([potential_of(lesson, weights=weights, gamma=1.0)])
    assert potential.tolist() == [[0.0, 0.25, 0.5]]
    reward = torch.tensor([reward_of(lesson, {}, weights=weights, training=training)])
    reward, value = outcome_of_the_silent(
        [lesson], reward, 0.4 - potential, potential_EH=potential, trusted=trusted
    )
    estimate = Gae(1.0, lam)(
        reward, value, mask_EH=torch.ones(1, 3, dtype=torch.bool), bootstrap_E=torch.zeros(1)
    )
    assert estimate.advantage_EH[0].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_a_farmed_bonus_is_not_paid_and_is_counted(agent: AgentFile) -> None:
    farmed, honest = with_gains(1, [0.5, 0.5], 1.0), with_gains(2, progress([0.0, 0.5], gamma=0.99), 1.0)
    assert farms(Lesson.of(farmed), gamma=0.99)
    paid = reward_of(Lesson.of(farmed), {}, weights=Weights(), training=agent.training)
    assert paid == (0.0, 1.0)
    assert potential_of(Lesson.of(farmed), weights=Weights(), gamma=0.99) == (0.0, 0.0)
    fair = reward_of(Lesson.of(honest), {}, weights=Weights(), training=agent.training)
    assert fair == pytest.approx((0.5 * 0.495, 1.0 - 0.25))
    found = credited([(farmed, EASY), (honest, EASY)], [], agent.training)
    assert found.measures()["shaping/farmed"] == 1.0
