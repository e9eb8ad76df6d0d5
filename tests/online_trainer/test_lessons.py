"""How signals become a turn's reward and an advantage, by numbers worked by hand (algorithms.md 9.2, 9.4)."""

from __future__ import annotations

import pytest
import torch

from feedback.agent_file import AgentFile, Weights
from feedback.reward import soft_overlong
from feedback.schemas import Channels, Correction, Experience
from feedback.training_section import Training
from online_trainer.assign import Assigned, assign, outcome_of_the_silent
from online_trainer.corrections import better_answers
from online_trainer.credit.scale import RunningScale
from online_trainer.critics.value import Critic
from online_trainer.features import Features, Survey
from online_trainer.lessons import Lesson, Replay, rewards
from online_trainer.returns import known_returns
from tests.online_trainer.tiny import experience, priced

WEIGHTS = Weights()


def item(
    number: int, channels: list[Channels], *, outcome: float | None, outcome_turn: int | None = None
) -> Experience:
    turns = [priced([1], [2], [-1.0], index=at, channels=each) for at, each in enumerate(channels)]
    return experience(number, turns, thumb=None, outcome_reward=outcome, outcome_turn=outcome_turn)


@pytest.mark.parametrize(
    ("channels", "rho", "expected"),
    [
        (Channels(), {}, 0.0),
        (Channels(), {0: 0.4}, 0.4),
        (Channels(rating=-1.0, tau=0.7), {}, -0.7),
        (Channels(rating=-1.0, tau=0.7), {0: 0.4}, -0.7 + 0.3 * 0.4),
        (Channels(rating=1.0, tau=1.0), {0: -0.9}, 1.0),
        (Channels(tools=-0.2), {}, -0.2),
        (Channels(progress=0.5), {}, 0.25),
        (Channels(length=-1.0), {}, -0.2),
        (Channels(rating=-1.0, tau=1.0, tools=-1.0), {}, -1.5),
    ],
)
def test_a_turn_is_priced_by_its_channels(channels: Channels, rho: dict[int, float], expected: float) -> None:
    lesson = Lesson.of(item(1, [channels], outcome=None))
    assert rewards(lesson, rho, weights=WEIGHTS, clip=1.5) == pytest.approx((expected,))


def test_the_outcome_lands_at_its_turn_and_a_courtesy_after_it_gets_nothing() -> None:
    lesson = Lesson.of(item(1, [Channels()] * 3, outcome=-1.0, outcome_turn=1))
    assert rewards(lesson, {}, weights=WEIGHTS, clip=1.5) == (0.0, -1.0, 0.0)
    last = Lesson.of(item(1, [Channels()] * 3, outcome=1.0))
    assert rewards(last, {}, weights=WEIGHTS, clip=1.5) == (0.0, 0.0, 1.0)


def replay_of(items: list[Experience]) -> Replay:
    replay = Replay()
    for each in items:
        replay.add(each)
        count = len(each.turns)
        replay.features[each.episode_id] = Features(
            torch.zeros((count, 9), dtype=torch.float16), torch.zeros((count, 8), dtype=torch.float16)
        )
    replay.unseen = {}
    return replay


def credited(batch: list[Experience], others: list[Experience], training: Training) -> Assigned:
    replay = replay_of([*others, *batch])
    critic = Critic(4, 5, settings=training.critic, seed=0)
    return assign(
        [Lesson.of(each) for each in batch],
        replay,
        critic,
        known_returns(replay, weights=WEIGHTS, training=training),
        {},
        weights=WEIGHTS,
        training=training,
        scale=RunningScale(),
        generator=torch.Generator().manual_seed(0),
    )


def test_an_episode_nobody_reacted_to_is_neither_good_nor_bad(agent: AgentFile) -> None:
    others = [item(n, [Channels()] * 2, outcome=-1.0) for n in range(20, 40)]
    batch = [
        item(1, [Channels()] * 2, outcome=None),
        item(2, [Channels()] * 2, outcome=1.0),
        item(3, [Channels()] * 2, outcome=-1.0),
    ]
    found = credited(batch, others, agent.training)
    assert found.advantage["ep_000001"] == (0.0, 0.0)
    assert not found.carries_signal("ep_000001")
    assert min(found.advantage["ep_000002"]) > 0
    assert found.baseline.lam == 1.0


def test_a_trusted_value_stands_in_for_the_missing_outcome() -> None:
    silent = Lesson.of(item(1, [Channels()] * 3, outcome=None, outcome_turn=1))
    value_EH = torch.tensor([[0.2, 0.6, 0.0]])
    nothing_EH = torch.zeros(1, 3)
    reward_EH, kept_EH = outcome_of_the_silent(
        [silent], nothing_EH, value_EH, potential_EH=nothing_EH, trusted=True
    )
    assert reward_EH.tolist() == [[0.0, pytest.approx(0.6), 0.0]]
    assert torch.equal(kept_EH, value_EH)
    reward_EH, dropped_EH = outcome_of_the_silent(
        [silent], nothing_EH, value_EH, potential_EH=nothing_EH, trusted=False
    )
    assert reward_EH.tolist() == dropped_EH.tolist() == [[0.0, 0.0, 0.0]]


def test_a_courtesy_is_not_credited_with_the_outcome_it_follows(agent: AgentFile) -> None:
    others = [item(n, [Channels()] * 3, outcome=-1.0, outcome_turn=1) for n in range(20, 40)]
    batch = [item(1, [Channels()] * 3, outcome=1.0, outcome_turn=1)]
    found = credited(batch, others, agent.training)
    first, second, courtesy = found.advantage["ep_000001"]
    assert min(first, second) > 0
    assert courtesy == 0.0


def test_a_broken_call_of_a_silent_episode_still_costs(agent: AgentFile) -> None:
    batch = [
        item(1, [Channels(), Channels(tools=-0.2)], outcome=None),
        item(2, [Channels()] * 2, outcome=1.0),
    ]
    found = credited(batch, [], agent.training)
    assert found.advantage["ep_000001"][1] < 0


def test_scaling_every_reward_scales_the_advantage_before_it_is_normalised(agent: AgentFile) -> None:
    def raw(scale: float) -> tuple[float, ...]:
        others = [item(n, [Channels()] * 2, outcome=-scale) for n in range(20, 40)]
        found = credited([item(1, [Channels()] * 2, outcome=scale)], others, agent.training)
        return tuple(value * found.scale.value for value in found.advantage["ep_000001"])

    assert raw(0.5) == pytest.approx(tuple(0.5 * value for value in raw(1.0)), rel=1e-5)


def test_features_and_lessons_come_back_as_they_were_saved() -> None:
    items = [item(n, [Channels()] * (1 + n % 3), outcome=1.0) for n in range(6)]
    replay = replay_of(items)
    for number, features in enumerate(replay.features.values()):
        features.state_TF.fill_(number)
    again = Replay.restore(
        list(replay.lessons.values()), order=replay.order(), tensors=replay.tensors(), unseen=[]
    )
    assert again.lessons == replay.lessons
    assert all(
        torch.equal(again.features[name].state_TF, replay.features[name].state_TF) for name in replay.features
    )


def test_of_what_nobody_read_only_thumbs_wait() -> None:
    replay = Replay()
    shown = [experience(n, [priced([1], [2], [-1.0])], thumb=None if n % 2 else 1) for n in range(6)]
    for one in shown:
        replay.add(one)
    assert [e.episode_id for e in replay.rated_unseen(2)] == ["ep_000002", "ep_000004"]
    replay.learn(Survey({("ep_000001", 0): torch.zeros((2, 4))}), [shown[1]], gamma=1.0)
    assert list(replay.features) == ["ep_000001"]
    assert list(replay.unseen) == ["ep_000000", "ep_000002", "ep_000004"]


def test_the_oldest_lessons_go_first_but_none_that_the_policy_waits_for() -> None:
    replay = replay_of([item(n, [Channels()] * 2, outcome=1.0) for n in range(5)])
    replay.trim(4, keep={"ep_000000"})
    assert list(replay.lessons) == ["ep_000000", "ep_000004"]
    assert set(replay.features) == {"ep_000000", "ep_000004"}


def corrected(number: int, *, revision: int = 1, taken_back: bool = False) -> Experience:
    """An episode of two turns, one of whose answers somebody wrote anew."""
    turns = [priced([1], [2], [-1.0], index=at) for at in range(2)]
    said = Correction(response_id=turns[0].response_id, text="yes", rater="r")
    return experience(number, turns, thumb=1, revision=revision, corrections=() if taken_back else (said,))


def with_child(*items: Experience) -> Replay:
    """What the trainer keeps once it has read the answers that people wrote."""
    children = [c for each in items for c in better_answers(each, lambda _: [3], max_length=64)]
    assert len(children) == sum(bool(each.corrections) for each in items)
    return replay_of([*items, *children])


def test_trimming_an_episode_takes_its_corrections_along_and_counts_their_turns() -> None:
    replay = with_child(corrected(1), corrected(2), item(3, [Channels()] * 2, outcome=1.0))
    replay.trim(5, keep=set())
    assert [len(name) > len("ep_000000") for name in replay.lessons] == [False, False, True]
    assert next(iter(replay.lessons)) == "ep_000002"
    replay.trim(0, keep=set())
    assert replay.lessons == {}


def test_a_correction_taken_back_is_forgotten_and_read_no_more() -> None:
    replay = with_child(corrected(1))
    replay.add(corrected(1, revision=2, taken_back=True))
    assert list(replay.lessons) == ["ep_000001"]
    fresh = replay_of([corrected(2)])
    fresh.add(corrected(2, revision=2))
    fresh.add(corrected(2, revision=3, taken_back=True))
    assert fresh.unseen == {}


def test_a_withdrawal_leaves_no_correction_behind() -> None:
    replay = with_child(corrected(1))
    known = replay.lessons["ep_000001"]
    replay.lessons["ep_000001"] = known.model_copy(update={"preferences": ()})
    replay.withdraw("ep_000001")
    assert replay.lessons == {} and replay.features == {}


def test_an_episode_that_went_on_after_it_closed_is_read_again() -> None:
    replay = replay_of([item(1, [Channels()] * 2, outcome=None)])
    longer = [priced([1], [2], [-1.0], index=at) for at in range(4)]

    replay.add(experience(1, longer, thumb=1, revision=2))

    assert list(replay.unseen) == ["ep_000001"]
    assert replay.known() == []
    replay.features["ep_000001"] = Features(torch.zeros((4, 9)), torch.zeros((4, 8)))
    replay.unseen = {}
    replay.add(experience(1, longer, thumb=0, revision=3))
    assert replay.unseen == {}


def test_t19_the_length_channel_is_dapos_soft_punishment() -> None:
    """Lmax 20480, Lc 4096: the budget is what may be said for nothing."""
    assert [soft_overlong(tokens, 20480 - 4096) for tokens in (16384, 18432, 20480)] == [0.0, -0.5, -1.0]
