"""T15, I12, the leak guard, cross-fitting, and the choice of the baseline."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from feedback.reward import progress
from feedback.schemas import Channels, Experience, PricedTurn, Sampling, ToolOutcome, Turn
from feedback.training_section import CriticSettings
from online_trainer.baseline import (
    Explained,
    choose_baseline,
    explained_variance,
    held_out_explained,
    turn_index_means,
)
from online_trainer.critics import state
from online_trainer.critics.value import (
    FOLDS,
    Critic,
    by_fold,
    cross_fit_loss,
    fold_of,
    own_fold,
    polyak,
    value_heads,
)
from tests.online_trainer import tiny

SETTINGS = CriticSettings(hidden=32, lr=2e-2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products lose more to waking threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("steps", "expected"), [(100, 0.394229564), (1000, 0.993346031)])
def test_t15_polyak(steps: int, expected: float) -> None:
    value, goal = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for _ in range(steps):
        value = polyak(value, goal, tau=0.005)
    assert float(value) == pytest.approx(expected, abs=1e-9)


def causal(ids: Tensor) -> Tensor:
    """A stand-in for the frozen model: the hidden state at a position is a function of the ids up to it."""
    return torch.stack([ids.double().cumsum(1), (ids.double() ** 2).cumsum(1)], dim=-1)


ROW, FIRST = torch.tensor([0, 0, 1]), torch.tensor([3, 8, 5])


def features(ids: Tensor, seen: Tensor) -> Tensor:
    state.require_before_action(seen, FIRST)
    return causal(ids)[ROW, seen]


def test_a_state_is_what_stood_before_the_action() -> None:
    ids = torch.arange(24).reshape(2, 12)
    got = features(ids, state.state_positions(FIRST))
    assert got[:, 0].tolist() == [0 + 1 + 2, sum(range(8)), sum(range(12, 17))]
    changed = ids.clone()
    changed[0, 8:], changed[1, 5:] = 99, 99
    assert torch.equal(features(changed, state.state_positions(FIRST))[1:], got[1:])
    changed[0, 3:] = 99
    assert torch.equal(features(changed, state.state_positions(FIRST))[0], got[0])


@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_i12_anything_caused_by_the_action_is_refused_loudly(turn: int, late: int) -> None:
    seen = state.state_positions(FIRST)
    seen[turn] = FIRST[turn] + late
    with pytest.raises(state.LeakError, match=f"turn {turn}"):
        features(torch.arange(24).reshape(2, 12), seen)


def test_i12_shuffled_times_are_refused_loudly() -> None:
    seen = state.state_positions(FIRST)[torch.tensor([1, 0, 2])]
    with pytest.raises(state.LeakError, match="turn 0"):
        features(torch.arange(24).reshape(2, 12), seen)


def test_a_turn_without_a_prompt_has_no_state() -> None:
    with pytest.raises(state.LeakError):
        state.state_positions(torch.tensor([4, 0]))


def priced(
    interaction: int,
    prompt: int,
    *,
    tokens: int = 2,
    fault: bool = False,
    rating: float | None = None,
    gain: float = 0.0,
) -> PricedTurn:
    outcome = ToolOutcome(call_id="c", name="calc", content="?", fault="arguments" if fault else None)
    turn = Turn(
        adapter_version="a-000000",
        prompt_ids=tuple(range(prompt)),
        token_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        raw_text="x",
        shown_text="x",
        stop_reason="stop",
        tool_results=(outcome,),
    )
    return PricedTurn(
        response_id=f"r{interaction}",
        interaction=interaction,
        ends_interaction=False,
        turn=turn,
        sampling=Sampling(),
        channels=Channels(rating=rating, tools=-0.2 if fault else 0.0, progress=gain),
    )


GAMMA = 0.9
PHI = [0.0, 0.5, 0.5, 1.0]
GAINS = progress(PHI, gamma=GAMMA)


def conversation(turns: Sequence[PricedTurn], verdicts: dict[str, int] | None = None) -> Experience:
    judged = {"trust": 0.8, "verdicts": verdicts or {}}
    return tiny.experience(1, turns, thumb=1, judgement=judged)


def four_turns() -> list[PricedTurn]:
    """Two interactions of two turns; the first answer was complained about, the second was thanked for afterwards."""
    shapes = [(0, 64, True), (0, 128, False), (1, 256, False), (1, 300, False)]
    return [
        priced(interaction, prompt, fault=fault, gain=gain)
        for (interaction, prompt, fault), gain in zip(shapes, GAINS, strict=True)
    ]


def test_side_facts_come_from_before_the_action() -> None:
    turns = four_turns()
    known = conversation(turns, {"r0": -1, "r1": 1})
    assert state.side_facts(known, 2, gamma=GAMMA) == (0.5, 0.25, 0.0, 0.25, 0.5, pytest.approx(0.5), -0.25)
    assert len(state.side_facts(known, 0, gamma=GAMMA)) == state.SIDE_FACTS
    assert [state.side_facts(known, at, gamma=GAMMA)[5] for at in range(4)] == pytest.approx(PHI)
    assert [state.side_facts(known, at, gamma=GAMMA)[6] for at in range(4)] == [0.0, 0.0, -0.25, -0.25]


@pytest.mark.parametrize("now", range(4))
def test_i12_no_side_fact_knows_what_its_action_caused(now: int) -> None:
    """Whatever the turn did, earned and was told afterwards, its own facts stay."""
    turns = four_turns()
    here = turns[now]
    prompt = len(here.turn.prompt_ids)
    caused = [
        priced(here.interaction, prompt, tokens=9, fault=True, rating=-1.0, gain=0.7),
        priced(here.interaction + 1, 999, fault=True, rating=1.0, gain=-1.0),
    ]
    before = {f"r{at}": -1 for at in range(here.interaction)}
    after = {f"r{at}": 1 for at in range(here.interaction, 4)}
    other = conversation([*turns[:now], *caused], before | after).model_copy(
        update={"thumb": 0, "outcome": 0, "outcome_reward": -1.0}
    )
    assert state.side_facts(other, now, gamma=GAMMA) == state.side_facts(
        conversation(turns, before), now, gamma=GAMMA
    )


EPISODES = [f"ep_{i:03d}" for i in range(120)]
TASTE = torch.randn(6, generator=torch.Generator().manual_seed(2))


def replay(seed: int, noise: float) -> tuple[Tensor, Tensor, list[str]]:
    """Four turns an episode; the return is a direction of the features plus noise shared by the episode."""
    generator = torch.Generator().manual_seed(seed)
    feature = torch.randn(480, 8, generator=generator)
    episodes = [EPISODES[i // 4] for i in range(480)]
    shared = torch.randn(120, generator=generator).repeat_interleave(4)
    return feature, torch.tanh(feature[:, :6] @ TASTE) + noise * shared, episodes


def taught(feature: Tensor, ret: Tensor, episodes: list[str], steps: int = 60) -> Critic:
    critic = Critic(6, 2, settings=SETTINGS, seed=0)
    for _ in range(steps):
        critic.learn(feature, ret, episode_ids=episodes)
    return critic


def explained(critic: Critic, feature: Tensor, ret: Tensor, episodes: list[str]) -> Explained:
    value = critic.values(feature, episode_ids=episodes)
    return held_out_explained(value, ret, episodes, generator=torch.Generator().manual_seed(0))


def test_a_critic_that_has_learned_something_shows_it_on_episodes_it_never_saw() -> None:
    feature, ret, episodes = replay(1, noise=0.5)
    got = explained(taught(feature, ret, episodes), feature, ret, episodes)
    assert 0.0 < got.lower < got.value < 0.9
    assert got.value > 0.25


def test_a_critic_that_can_only_memorise_is_not_believed() -> None:
    generator = torch.Generator().manual_seed(8)
    feature = torch.randn(40, 32, generator=generator).repeat_interleave(4, dim=0)
    luck = torch.randn(40, generator=generator).repeat_interleave(4)
    episodes = [EPISODES[i // 4] for i in range(160)]
    critic = Critic(32, 0, settings=SETTINGS, seed=0)
    for _ in range(100):
        critic.learn(feature, luck, episode_ids=episodes)
    got = explained(critic, feature, luck, episodes)
    assert got.lower < 0.0
    with torch.no_grad():
        seen_KHN = by_fold(critic.heads(feature))
    other = (torch.tensor([fold_of(e) for e in episodes]) + 1) % FOLDS
    assert explained_variance(own_fold(seen_KHN, other).mean(0), luck) > got.value + 0.3


def test_the_member_of_a_fold_never_learns_from_it() -> None:
    episodes = [e for e in EPISODES if fold_of(e) == 2][:8]
    critic = Critic(6, 2, settings=SETTINGS, seed=0)
    for _ in range(5):
        critic.learn(torch.randn(8, 8), torch.ones(8), episode_ids=episodes)
    with torch.no_grad():
        value = by_fold(critic.heads(torch.randn(3, 8)))
    assert torch.equal(value[2], torch.zeros(2, 3))
    assert all(float(value[k].abs().min()) > 0 for k in (0, 1, 3, 4))
    assert torch.equal(critic.values(torch.randn(8, 8), episode_ids=episodes), torch.zeros(8))


def test_every_fold_gets_about_a_fifth() -> None:
    folds = [fold_of(f"ep_{i}") for i in range(3000)]
    assert all(folds.count(k) / 3000 == pytest.approx(0.2, abs=0.03) for k in range(FOLDS))


def test_cross_fit_loss_and_own_fold_worked_by_hand() -> None:
    value = torch.arange(FOLDS, dtype=torch.float64)[:, None, None].expand(FOLDS, 2, 2)
    fold, ret = torch.tensor([0, 3]), torch.tensor([1.0, 1.0], dtype=torch.float64)
    first, second = [0.5 * (k - 1) ** 2 for k in (1, 2, 3, 4)], [0.5 * (k - 1) ** 2 for k in (0, 1, 2, 4)]
    assert float(cross_fit_loss(value, ret, fold)) == pytest.approx((sum(first) + sum(second)) / 8)
    assert own_fold(value, fold).tolist() == [[0.0, 3.0], [0.0, 3.0]]


@pytest.mark.parametrize("hidden_size", [576, 4096])
def test_a_critic_has_at_most_a_million_parameters(hidden_size: int) -> None:
    heads = value_heads(hidden_size, state.SIDE_FACTS, units=256, generator=torch.Generator())
    assert sum(p.numel() for p in heads.parameters()) <= 1_000_000


def test_state_comes_back_whole() -> None:
    feature, ret, episodes = replay(1, noise=0.0)
    critic = taught(feature, ret, episodes, steps=10)
    other = Critic(6, 2, settings=SETTINGS, seed=9)
    assert other.fits(critic.state()) and not Critic(6, 3, settings=SETTINGS, seed=9).fits(critic.state())
    other.load(critic.state())
    for each in (critic, other):
        each.learn(feature, ret, episode_ids=episodes)
    assert torch.equal(
        critic.values(feature, episode_ids=episodes), other.values(feature, episode_ids=episodes)
    )


def test_case_40_a_broken_return_teaches_nothing() -> None:
    feature, ret, episodes = replay(1, noise=0.0)
    critic = taught(feature, ret, episodes, steps=2)
    before = critic.values(feature, episode_ids=episodes)
    spoilt = ret.clone()
    spoilt[0] = math.nan
    assert math.isnan(critic.learn(feature, spoilt, episode_ids=episodes))
    assert torch.equal(critic.values(feature, episode_ids=episodes), before)


def test_explained_variance_worked_by_hand() -> None:
    ret = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(ret, ret) == 1.0
    assert explained_variance(ret + 5, ret) == 1.0
    assert explained_variance(torch.zeros(4), ret) == 0.0
    assert explained_variance(-ret, ret) == pytest.approx(1 - 4)
    assert explained_variance(ret, torch.ones(4)) == 0.0


def test_the_bound_counts_episodes_not_turns() -> None:
    """Copies of the same few episodes' turns are not more evidence."""
    generator = torch.Generator().manual_seed(3)
    value = torch.randn(12, generator=generator)
    ret = 0.5 * value + torch.randn(12, generator=generator)
    names = [f"e{i}" for i in range(12)]

    def bound(copies: int) -> Explained:
        return held_out_explained(
            value.repeat(copies),
            ret.repeat(copies),
            names * copies,
            generator=torch.Generator().manual_seed(0),
        )

    assert bound(20).lower == pytest.approx(bound(1).lower, abs=1e-6)
    assert bound(20).turns == 240
    assert bound(1).lower < bound(1).value
    assert held_out_explained(value, ret, ["one"] * 12, generator=generator).lower == -math.inf


def test_turn_index_means_leave_the_own_episode_out() -> None:
    index = torch.tensor([0, 1, 0, 1, 0])
    ret = torch.tensor([1.0, 0.0, 3.0, 2.0, 100.0], dtype=torch.float64)
    episodes = ["a", "a", "b", "b", "c"]
    got = turn_index_means(
        torch.tensor([0, 1, 0, 7]),
        ["c", "c", "new", "c"],
        replay_index_R=index,
        replay_return_R=ret,
        replay_episodes_R=episodes,
    )
    overall, everyone = 6 / 4, 106 / 5
    assert got.tolist() == pytest.approx(
        [(4 + 8 * overall) / 10, (2 + 8 * overall) / 10, (104 + 8 * everyone) / 11, overall]
    )
    alone = turn_index_means(
        torch.tensor([0]),
        ["a"],
        replay_index_R=index[:2],
        replay_return_R=ret[:2],
        replay_episodes_R=["a", "a"],
    )
    assert alone.tolist() == [0.0]


@pytest.mark.parametrize(
    ("explained", "share", "lam"),
    [
        (Explained(0.9, 0.5, 299), 1.0, 1.0),
        (Explained(0.9, 0.0, 5000), 1.0, 1.0),
        (Explained(0.9, math.nan, 5000), 1.0, 1.0),
        (Explained(0.15, 0.01, 300), 0.5, 0.9),
        (Explained(0.3, 0.1, 300), 0.0, 0.9),
        (Explained(0.8, 0.6, 300), 0.0, 0.9),
    ],
)
def test_the_critic_is_used_as_far_as_it_explains(explained: Explained, share: float, lam: float) -> None:
    critic, mean = torch.tensor([1.0, -1.0]), torch.tensor([0.2, 0.4])
    got = choose_baseline(critic, mean, explained=explained, lam=0.9, settings=CriticSettings())
    assert (got.replay_share, got.lam) == (pytest.approx(share), lam)
    assert torch.allclose(got.value_N, (1 - share) * critic + share * mean)
