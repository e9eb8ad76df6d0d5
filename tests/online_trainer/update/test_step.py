"""One update: exact zero where nothing pulls, the same whatever the order or the cut, bit for bit undone when refused.

I2, I6, I8 of algorithms.md section 10; cases 24 and 40.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from feedback.agent_file import AgentFile
from feedback.schemas import Decision
from feedback.training_section import Training
from online_trainer.policy import Policy, state_digest
from online_trainer.update.batch import Batch, NothingToTrain, Row, build, lay_out, mark
from online_trainer.update.climb import Goal, backward
from online_trainer.update.look import look
from online_trainer.update.measured_gates import Opinions
from online_trainer.update.movement import is_clear
from online_trainer.update.step import Step, new_optimizer, update
from online_trainer.update.trust import Limits, Measures
from tests.online_trainer import tiny

LOOSE = {
    "k3_old_stop": 10.0,
    "k3_old_refuse": 10.0,
    "m2_refuse": 10.0,
    "turn_kl_refuse": 10.0,
    "big_move_share": 1.0,
    "k3_mu_refuse": 10.0,
    "clip_fraction_stop": 1.0,
}


def rows_for(policy: Policy, count: int = 24, *, seed: int = 0) -> list[Row]:
    items = tiny.dialogues(policy, count, seed=seed)
    return [row for item in items for row in lay_out(item, max_length=256)]


def raters_of(batch: Batch) -> list[str]:
    return [f"rater-{row.episode_id}" for row in batch.rows]


def step(
    policy: Policy,
    batch: Batch,
    advantage_M: torch.Tensor,
    training: Training,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    rate: float = 1e-3,
    beta: float = 0.0,
    norms: Sequence[float] = (),
) -> Step:
    with policy.under(None):
        reference = look(policy, batch, token_budget=4096)
    return update(
        policy,
        optimizer or new_optimizer(policy),
        batch,
        advantage_M=advantage_M,
        raters=raters_of(batch),
        reference_hidden_ND=reference.hidden_ND,
        training=training,
        rate=rate,
        beta=beta,
        generator=torch.Generator().manual_seed(1),
        norms=norms,
    )


def signs(batch: Batch) -> torch.Tensor:
    """+1 for a GOOD first choice, -1 otherwise; the second turn carries half of it."""
    first = {row.episode_id: 1.0 if row.ids[row.spans[0].start] in tiny.GOOD else -1.0 for row in batch.rows}
    return torch.tensor([first[episode] * (1.0 if turn == 0 else 0.5) for episode, turn in batch.turns])


def training_with(agent: AgentFile, **trust: Any) -> Training:
    changed = agent.training.trust.model_copy(update=trust)
    return agent.training.model_copy(update={"trust": changed})


def test_nothing_pulls_without_advantage_at_the_reference(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy))
    here = look(policy, batch, token_budget=4096)
    goal = Goal(torch.zeros(batch.tokens), torch.ones(batch.tokens, dtype=torch.bool), here, here)
    backward(policy, batch, goal, range(len(batch.rows)), training=agent.training, beta=0.1)
    gradients = [parameter.grad for parameter in policy.parameters]
    assert all(gradient is not None and not bool(gradient.any()) for gradient in gradients)


def test_a_batch_without_weight_is_not_a_step(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy))
    with pytest.raises(NothingToTrain):
        step(policy, batch, torch.zeros(len(batch.turns)), agent.training)


def test_an_update_raises_what_was_praised_and_lowers_what_was_blamed(
    policy: Policy, agent: AgentFile
) -> None:
    batch = build(rows_for(policy, 48))
    old = look(policy, batch, token_budget=4096).logprob_N
    made = step(policy, batch, signs(batch), training_with(agent, **LOOSE))
    new = look(policy, batch, token_budget=4096).logprob_N
    praised_N = signs(batch)[batch.turn_N] > 0
    assert made.outcome.decision is Decision.ACCEPTED
    assert float((new - old)[praised_N].mean()) > 0 > float((new - old)[~praised_N].mean())


def test_two_episodes_in_many_rows_are_two_minibatches(policy: Policy, agent: AgentFile) -> None:
    """Eight rows of two episodes make two steps of four: each weighs half of the update's tokens, not a quarter."""
    rows = [
        replace(row, episode_id=f"ep_{number % 2}", spans=(replace(row.spans[0], turn=number),))
        for number, row in enumerate(rows_for(policy, 8))
    ]
    batch = build(rows)
    training = with_ppo(agent.training, minibatches=4)
    here = look(policy, batch, token_budget=4096)
    used_N = torch.ones(batch.tokens, dtype=torch.bool)
    goal = Goal(torch.ones(batch.tokens), used_N, here, here)
    half = [number for number, row in enumerate(batch.rows) if row.episode_id == "ep_0"]
    share = backward(policy, batch, goal, half, training=training, beta=0.0)
    assert len(batch.rows) == 8
    assert share.loss == pytest.approx(-1.0, abs=1e-4)


def with_ppo(training: Training, **changes: Any) -> Training:
    return training.model_copy(update={"ppo": training.ppo.model_copy(update=changes)})


def test_turn_ratios_climb_too_and_start_where_token_ratios_do(agent: AgentFile) -> None:
    """At theta = old every ratio is 1, so one step is the same."""
    results = []
    for level in ("token", "turn_geo"):
        policy = tiny.new_policy(agent)
        batch = build(rows_for(policy))
        training = with_ppo(training_with(agent, **LOOSE), ratio_level=level, minibatches=1)
        made = step(policy, batch, signs(batch), training)
        assert made.outcome.decision is Decision.ACCEPTED
        results.append(policy.state())
    assert max(float((results[0][name] - results[1][name]).abs().max()) for name in results[0]) < 1e-4


def test_an_entropy_bonus_keeps_choices_open(agent: AgentFile) -> None:
    def entropy_after(coefficient: float) -> float:
        policy = tiny.new_policy(agent)
        batch = build(rows_for(policy))
        here = look(policy, batch, token_budget=4096)
        goal = Goal(torch.zeros(batch.tokens), torch.ones(batch.tokens, dtype=torch.bool), here, here)
        optimizer = torch.optim.SGD(policy.parameters, lr=2.0)
        rows = range(len(batch.rows))
        backward(policy, batch, goal, rows, training=agent.training, beta=0.0, entropy=coefficient)
        optimizer.step()
        after = look(policy, batch, token_budget=4096)
        with torch.no_grad():
            logp_NV = policy.log_softmax(after.hidden_ND, batch.temperature_N)
        return float(-(logp_NV.exp() * logp_NV).sum(-1).mean())

    assert entropy_after(0.1) > entropy_after(0.0) + 1e-4


def test_judges_opinions_are_measured_on_the_passes_that_are_made_anyway(
    policy: Policy, agent: AgentFile
) -> None:
    """A judge of the policy's own taste sees a gain, one of the opposite taste a loss; a set limit refuses that one."""
    batch = build(rows_for(policy, 48))
    before = state_digest(policy.state())
    taste_M, episode_M = signs(batch), torch.arange(len(batch.turns)) // 2
    with policy.under(None):
        reference = look(policy, batch, token_budget=4096)

    def made(gold_M: torch.Tensor, **trust: Any) -> Step:
        return update(
            policy,
            new_optimizer(policy),
            batch,
            advantage_M=taste_M,
            raters=raters_of(batch),
            reference_hidden_ND=reference.hidden_ND,
            training=training_with(agent, **{**LOOSE, **trust}),
            rate=1e-3,
            beta=0.0,
            generator=torch.Generator().manual_seed(1),
            opinions=Opinions(gold_M, taste_M, episode_M),
        )

    refused = made(-taste_M, gold_drop=0.0)
    assert refused.outcome.decision is Decision.REFUSED
    assert refused.outcome.reasons[0].startswith("gold_upper")
    assert state_digest(policy.state()) == before
    kept = made(taste_M, gold_drop=0.0).outcome
    assert kept.decision is Decision.ACCEPTED
    assert kept.measures.gold_gain == pytest.approx(kept.measures.judge_gain)
    assert kept.measures.gold_gain > 0
    assert kept.measures.gold_turns > 0


def test_order_and_cut_of_the_batch_leave_the_update_unchanged(agent: AgentFile) -> None:
    results = []
    for order, budget in ((1, 4096), (-1, 64), (1, 32)):
        policy = tiny.new_policy(agent)
        batch = build(rows_for(policy)[::order])
        training = training_with(agent, **LOOSE).model_copy(update={"token_budget": max(64, budget)})
        step(policy, batch, signs(batch), training, beta=0.02)
        results.append(policy.state())
    for other in results[1:]:
        # Adam divides by the gradient's size: compare where the first moments are not noise
        gaps = [float((results[0][name] - other[name]).abs().max()) for name in other]
        assert max(gaps) < 1e-4


def test_a_refused_update_leaves_weights_and_optimizer_bit_for_bit(policy: Policy, agent: AgentFile) -> None:
    optimizer = new_optimizer(policy)
    batch = build(rows_for(policy))
    step(policy, batch, signs(batch), training_with(agent, **LOOSE), optimizer=optimizer)
    before, kept = state_digest(policy.state()), copy.deepcopy(optimizer.state_dict())
    strict = training_with(agent, k3_old_refuse=1e-9)
    made = step(policy, batch, signs(batch), strict, optimizer=optimizer, rate=1e-2)
    assert made.outcome.decision is Decision.REFUSED
    assert made.outcome.reasons[0].startswith("k3_old")
    assert state_digest(policy.state()) == before
    now = optimizer.state_dict()
    for key, moments in kept["state"].items():
        assert all(torch.equal(moments[name], now["state"][key][name]) for name in moments)


def test_a_step_that_is_too_long_is_shrunk_to_what_is_allowed(agent: AgentFile) -> None:
    def made_at(**trust: Any) -> Step:
        policy = tiny.new_policy(agent)
        batch = build(rows_for(policy))
        return step(policy, batch, signs(batch), training_with(agent, **{**LOOSE, **trust}))

    whole = made_at().outcome.measures.k3_old
    shrunk = made_at(k3_old_refuse=whole / 2).outcome
    assert shrunk.decision is Decision.SHRUNK
    assert shrunk.scale == 0.5
    assert shrunk.measures.k3_old == pytest.approx(whole / 4, rel=0.3)


def test_a_moving_epoch_is_stopped_before_its_next_step(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy))
    trust = {**LOOSE, "k3_old_stop": 1e-7}
    made = step(policy, batch, signs(batch), training_with(agent, **trust))
    assert made.climb.steps == 1
    assert made.climb.stopped is not None and made.climb.stopped.startswith("k3_old")


def test_nan_is_refused_and_reaches_no_weight(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy))
    before = state_digest(policy.state())
    poisoned = signs(batch)
    poisoned[0] = torch.nan
    made = step(policy, batch, poisoned, agent.training)
    assert made.outcome.decision is Decision.REFUSED
    assert made.outcome.reasons[0].startswith("non_finite")
    assert state_digest(policy.state()) == before


def test_whatever_was_recorded_at_turns_that_do_not_count_changes_nothing(agent: AgentFile) -> None:
    """A tool turn's recorded log-probabilities may be +50, -1e9 or NaN (case 24)."""
    digests = []
    for garbage in (-1.0, 50.0, -1e9, float("nan")):
        policy = tiny.new_policy(agent)
        items = tiny.dialogues(policy, 24)
        rows = [row for item in items for row in lay_out(item, max_length=256)]
        bad = {(item.episode_id, 1): "stale" for item in items}
        rows = list(mark(rows, bad))
        spoiled = [
            Row(row.episode_id, row.ids, tuple(_spoil(span, garbage) for span in row.spans)) for row in rows
        ]
        batch = build(spoiled)
        assert batch.tokens == 24
        step(policy, batch, signs(batch), training_with(agent, **LOOSE), beta=0.02)
        digests.append(state_digest(policy.state()))
    assert len(set(digests)) == 1


def _spoil(span: Any, garbage: float) -> Any:
    return span if span.counts else replace(span, mu=tuple(garbage for _ in span.mu))


def test_turns_that_the_head_has_outgrown_are_dropped_whole(policy: Policy, agent: AgentFile) -> None:
    rows = rows_for(policy)
    span = rows[0].spans[0]
    unlikely = replace(span, mu=(span.mu[0] - 3.0,))
    rows[0] = replace(rows[0], spans=(unlikely, *rows[0].spans[1:]))
    batch = build(rows)
    made = step(policy, batch, signs(batch), training_with(agent, **LOOSE))
    assert made.dropped == ((rows[0].episode_id, span.turn),)


def measures(**changes: float) -> Measures:
    """Far inside every limit unless changed."""
    quiet = dict.fromkeys(("k3_old", "k3_mu", "kl_ref", "m2", "turn_kl", "big_move_share"), 1e-6)
    whole = {**quiet, "ess": 0.95, "clip_fraction": 0.0, "grad_norm": 1.0, "tokens": 10.0}
    return Measures(**{**whole, **changes})


@pytest.mark.parametrize(
    ("changes", "clear"),
    [
        ({}, True),
        ({"k3_old": 9e-4}, True),
        ({"k3_old": 1.1e-3}, False),
        ({"k3_old": 3.9e-3}, False),
        ({"k3_old": 4.1e-3}, True),
        ({"turn_kl": 0.06}, False),
        ({"ess": 0.55}, False),
    ],
)
def test_half_of_a_batch_settles_only_what_is_clear(
    changes: dict[str, float], clear: bool, agent: AgentFile
) -> None:
    assert is_clear(measures(**changes), Limits.of(agent.training)) is clear


def test_one_rater_weighs_at_most_a_tenth(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy, 48))
    raters = ["same" if number < 24 else f"r{number}" for number in range(len(batch.rows))]
    with policy.under(None):
        reference = look(policy, batch, token_budget=4096)
    made = update(
        policy,
        new_optimizer(policy),
        batch,
        advantage_M=signs(batch),
        raters=raters,
        reference_hidden_ND=reference.hidden_ND,
        training=training_with(agent, **LOOSE),
        rate=1e-3,
        beta=0.0,
        generator=torch.Generator().manual_seed(1),
    )
    assert made.rater_share <= 0.1 + 1e-6


def test_a_gradient_far_above_the_usual_ends_the_update(policy: Policy, agent: AgentFile) -> None:
    batch = build(rows_for(policy))
    usual = step(policy, batch, signs(batch), training_with(agent, **LOOSE)).climb.norms
    assert len(usual) == agent.training.ppo.minibatches

    before = state_digest(policy.state())
    wild = step(policy, batch, 50 * signs(batch), training_with(agent, **LOOSE), norms=usual)

    assert wild.outcome.decision is Decision.REFUSED
    assert wild.outcome.reasons[0].startswith("grad_norm")
    assert state_digest(policy.state()) == before
