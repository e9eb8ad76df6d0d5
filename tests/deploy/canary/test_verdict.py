"""The state machine: what aborts, what waits, what promotes, and what no data can ever do."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.canary.guardrails import GUARDRAILS
from deploy.canary.trial import FINISHED, LEGAL, Canary, Illegal, Known, Phase, Transition, create, evidence
from deploy.canary.verbs import abort, delivered, pause, promote, resume, skip_step, supersede
from deploy.canary.verdict import begin, judge, saw_episode, took_unit
from feedback.agent_file import Canary as Settings
from feedback.agent_file import Prior
from feedback.schemas import Verdict

KNOWN = Known(0.4, dict.fromkeys(GUARDRAILS, 0.95))
DESK = Settings.model_validate(
    {
        "steps": [{"setShare": 0.2}, {"hold": {"units": 16}}, {"setShare": 0.5}, {"analysis": {}}],
        "alphaPromote": 0.05,
        "alphaRollback": 0.05,
        "margin": 0.05,
        "onInconclusive": "supersede",
        "supersedeAfter": 250,
        "deadline": "1h",
    }
)
CLEAN = dict.fromkeys(GUARDRAILS, False)
ENDLESS = 10.0


def started(config: Settings = DESK) -> Canary:
    canary, _ = begin(create("cn_1", "travel-desk-000001", settings=config, known=KNOWN), now=0)
    return canary


def meet(
    canary: Canary, arm: int, outcome: float | None, *, thumb: float | None = None, **faults: bool
) -> Canary:
    """One whole episode at the share in force."""
    share = canary.share or 0.5
    canary = saw_episode(canary, arm, propensity=share, faults=CLEAN | faults)
    return took_unit(canary, arm, propensity=share, outcome=outcome, thumb=thumb)


def look(
    canary: Canary, *, now: int = 1, newer_waits: bool = False, allowance: float = ENDLESS
) -> tuple[Canary, tuple[Transition, ...]]:
    return judge(canary, now=now, newer_waits=newer_waits, allowance=allowance)


def play(
    canary: Canary, champion: float, candidate: float, *, episodes: int, seed: int = 1
) -> tuple[Canary, list[float]]:
    """Honest traffic until a verdict; the shares that were in force."""
    generator = random.Random(seed)
    shares = []
    for _ in range(episodes):
        shares.append(canary.share)
        arm = int(generator.random() < canary.share)
        success = float(generator.random() < (candidate if arm else champion))
        canary, _ = look(meet(canary, arm, success))
        if canary.phase is not Phase.PROGRESSING:
            break
    return canary, shares


def test_a_better_candidate_is_promoted_and_a_worse_one_rolled_back() -> None:
    good, shares = play(started(), 0.4, 0.6, episodes=900, seed=2)
    assert (good.phase, good.verdict, good.reason) == (Phase.PROMOTING, Verdict.PROMOTED, "better")
    assert shares == sorted(shares)
    assert set(shares) == {0.2, 0.5}
    bad, _ = play(started(), 0.8, 0.4, episodes=600)
    assert (bad.phase, bad.verdict, bad.reason) == (Phase.ABORTED, Verdict.ROLLED_BACK, "worse")
    assert bad.share == 0.0


def test_flipping_the_arms_flips_the_verdict() -> None:
    """The same people, told apart the other way round: whoever won now loses."""
    verdicts = {}
    for better_arm in (0, 1):
        canary = replace(started(), step=3, share=0.5)
        for _ in range(200):
            canary, _ = look(meet(canary, 0, float(better_arm == 0)))
            canary, _ = look(meet(canary, 1, float(better_arm == 1)))
            if canary.phase is not Phase.PROGRESSING:
                break
        verdicts[better_arm] = canary.verdict
    assert verdicts == {0: Verdict.ROLLED_BACK, 1: Verdict.PROMOTED}


def test_begin_takes_the_first_share_and_logs_it() -> None:
    canary, log = begin(create("cn_1", "v", settings=DESK, known=KNOWN), now=5)
    assert (canary.phase, canary.share, canary.step) == (Phase.PROGRESSING, 0.2, 1)
    assert [(line.before, line.after, line.reason) for line in log] == [
        (Phase.PENDING, Phase.PROGRESSING, "admitted"),
        (Phase.PROGRESSING, Phase.PROGRESSING, "share 0.2"),
    ]
    assert log[0].at == 5


def test_hold_counts_the_candidates_units_with_an_outcome() -> None:
    canary = started()
    for _ in range(15):
        canary = meet(meet(canary, 1, 1.0), 0, 1.0)
    canary = meet(canary, 1, None)
    canary, log = look(canary)
    assert (canary.share, log) == (0.2, ())
    canary, log = look(meet(canary, 1, 0.0))
    assert canary.share == 0.5
    assert [line.reason for line in log] == ["hold passed with 16 units", "share 0.5"]


def test_a_share_alone_never_promotes_before_the_last_step() -> None:
    """Overwhelming evidence while a hold still waits changes nothing."""
    config = DESK.model_copy(update={"steps": (*DESK.steps[:1], _hold(1000), *DESK.steps[2:])})
    canary = replace(started(config), share=0.5)
    for _ in range(120):
        canary, _ = look(meet(meet(canary, 1, 1.0), 0, 0.0))
    assert evidence(canary)["better"]["log10_e"] > 5
    assert canary.phase is Phase.PROGRESSING


def _hold(units: int) -> object:
    return Settings.model_validate({"steps": [{"hold": {"units": units}}, {"analysis": {}}]}).steps[0]


@pytest.mark.parametrize("arms", [(), (0,), (1,)])
def test_missing_data_never_passes(arms: tuple[int, ...]) -> None:
    """Silence on both arms, or ratings on one arm only, is not a promotion."""
    canary = replace(started(), step=3, share=0.5)
    for _ in range(300):
        for arm in (0, 1):
            canary = meet(canary, arm, 1.0 if arm in arms else None)
        canary, _ = look(canary)
    assert canary.phase in {Phase.PROGRESSING, Phase.PAUSED}
    assert canary.verdict is None


def test_silence_is_counted_and_is_not_a_zero() -> None:
    canary = meet(meet(started(), 0, None), 1, None)
    arms = evidence(canary)["arms"]
    assert (arms["champion"]["silent"], arms["candidate"]["silent"]) == (1, 1)
    assert (arms["champion"]["mean"], canary.units) == (None, 0)


@pytest.mark.parametrize("name", GUARDRAILS)
def test_each_guardrail_aborts_without_a_single_rating(name: str) -> None:
    canary = started()
    for _ in range(40):
        for arm in (0, 0, 0, 0, 1):
            canary = saw_episode(canary, arm, propensity=0.2, faults=CLEAN | ({name: True} if arm else {}))
        canary, _ = look(canary)
    assert (canary.phase, canary.reason) == (Phase.ABORTED, f"guardrail {name}")
    assert canary.episodes1 <= 12


def test_errors_abort_without_any_baseline() -> None:
    """The champion's arm has seen nobody: five broken replies in a row are still too many."""
    canary = started()
    for _ in range(6):
        canary = saw_episode(canary, 1, propensity=0.2, faults=CLEAN | {"request_error": True})
    assert look(canary)[0].reason == "guardrail request_error"


def test_guardrails_cannot_promote() -> None:
    """A candidate free of every fault against a champion full of them is still only waiting."""
    canary = replace(started(), step=3, share=0.5)
    for _ in range(200):
        canary = saw_episode(canary, 0, propensity=0.5, faults=dict.fromkeys(GUARDRAILS, True))
        canary = saw_episode(canary, 1, propensity=0.5, faults=CLEAN)
        canary, _ = look(canary)
    assert canary.phase is Phase.PROGRESSING


def test_thumbs_alone_can_abort() -> None:
    """The implicit signal loves it, the people who press a button do not."""
    canary = replace(started(), step=3, share=0.5)
    for turn in range(400):
        arm = turn % 2
        thumb = None if turn % 4 < 2 else float(1 - arm)
        outcome = thumb if thumb is not None else float(arm)
        canary, _ = look(meet(canary, arm, outcome, thumb=thumb))
        if canary.phase is not Phase.PROGRESSING:
            break
    assert (canary.phase, canary.reason) == (Phase.ABORTED, "worse by thumbs alone")


def test_a_skewed_split_pauses_at_share_zero() -> None:
    canary = started()
    for _ in range(60):
        canary = saw_episode(canary, 1, propensity=0.2, faults=CLEAN)
    canary, _ = look(canary)
    assert (canary.phase, canary.share, canary.reason[:14]) == (Phase.PAUSED, 0.0, "assignment_srm")


def test_skewed_reactions_pause_and_a_resume_answers_them() -> None:
    canary = replace(started(), step=3, share=0.5)
    for turn in range(240):
        arm = turn % 2
        canary = meet(canary, arm, float(turn % 12 < 6) if arm or turn % 6 == 0 else None)
    canary, _ = look(canary)
    assert (canary.phase, canary.reason[:9]) == (Phase.PAUSED, "rated_srm")
    canary, _ = resume(canary, actor="ada", now=7)
    assert (canary.share, canary.phase) == (0.5, Phase.PROGRESSING)
    assert look(canary, now=8)[0].phase is Phase.PROGRESSING


def test_the_deadline_pauses_and_never_promotes() -> None:
    canary, log = look(started(), now=3_600_000)
    assert (canary.phase, canary.share, log[-1].reason) == (Phase.PAUSED, 0.0, "deadline")
    assert look(canary, now=9_999_999)[0].phase is Phase.PAUSED


def test_harm_aborts_a_paused_canary_too() -> None:
    canary, _ = pause(started(), actor="ada", now=1)
    for _ in range(10):
        canary = saw_episode(canary, 1, propensity=0.2, faults=CLEAN | {"invalid_tool_call": True})
    assert look(canary)[0].phase is Phase.ABORTED


def test_supersede_needs_units_a_newer_version_and_the_profile() -> None:
    canary = replace(started(), step=3, share=0.5)
    for turn in range(250):
        canary = meet(canary, turn % 2, float(turn % 4 < 2))
    assert look(canary)[0].phase is Phase.PROGRESSING
    assert look(canary, newer_waits=True)[0].verdict is Verdict.SUPERSEDED
    waiting = replace(canary, settings=DESK.model_copy(update={"onInconclusive": "pause"}))
    assert look(waiting, newer_waits=True)[0].phase is Phase.PROGRESSING


def test_the_budget_stops_a_lower_mean_and_only_that() -> None:
    """Non-inferior by evidence, but observed a little lower: promoted only while the budget lasts."""
    config = DESK.model_copy(update={"margin": 0.3})
    canary = replace(started(config), step=3, share=0.5)
    for turn in range(240):
        arm = turn % 2
        canary = meet(canary, arm, float(turn % 20 >= (6 if arm else 4)))
    assert look(canary, allowance=0.01)[0].phase is Phase.PROGRESSING
    assert look(canary, allowance=0.2)[0].phase is Phase.PROMOTING


def test_verbs_move_and_say_who() -> None:
    canary, log = pause(started(), actor="ada", now=3)
    assert (canary.phase, canary.share, log[0].actor) == (Phase.PAUSED, 0.2, "ada")
    canary, _ = resume(canary, actor="ada", now=4)
    canary, _ = skip_step(canary, actor="ada", now=5)
    assert (canary.share, canary.phase) == (0.5, Phase.PROGRESSING)
    canary, log = skip_step(canary, actor="ada", now=6)
    assert (canary.phase, log[-1].actor, log[-1].reason) == (Phase.PROMOTING, "ada", "promoted by hand")
    canary, _ = delivered(canary, now=7)
    assert canary.phase is Phase.SUCCEEDED
    for verb in (pause, resume, skip_step, promote, abort):
        with pytest.raises(Illegal, match="needs a canary that is"):
            verb(canary, actor="ada", now=8)


def test_skipping_from_a_pause_resumes() -> None:
    canary, _ = pause(started(), actor="ada", now=3)
    canary, log = skip_step(canary, actor="ada", now=4)
    assert (canary.phase, canary.share) == (Phase.PROGRESSING, 0.5)
    assert [line.reason for line in log] == ["resumed", "step skipped", "share 0.5"]


def test_late_data_never_reopens_a_verdict() -> None:
    canary, _ = abort(started(), actor="ada", now=1)
    before = canary
    for _ in range(50):
        canary = meet(canary, 1, 1.0)
        canary, log = look(canary)
        assert log == ()
    assert canary == before


def test_units_without_randomisation_are_left_out() -> None:
    canary = started()
    assert took_unit(canary, 1, propensity=0.0, outcome=1.0) == canary
    assert took_unit(canary, 0, propensity=1.0, outcome=1.0) == canary


def test_finished_phases_have_no_way_out() -> None:
    assert {Phase.SUCCEEDED, Phase.ABORTED, Phase.SUPERSEDED, Phase.FAILED} == FINISHED
    assert all(after not in FINISHED or not LEGAL[after] for after in Phase)
    with pytest.raises(Illegal):
        supersede(abort(started(), actor="ada", now=1)[0], reason="late", now=2)


episode = st.tuples(st.integers(0, 1), st.sampled_from([None, 0.0, 1.0]), st.booleans())


@settings(max_examples=40, deadline=None)
@given(st.lists(episode, max_size=80), st.floats(0.0, 0.3))
def test_whatever_comes_the_rules_hold(units: list[tuple[int, float | None, bool]], lift: float) -> None:
    """Share only grows until a pause or verdict; promotion needs its bar; a roll-back needs one of its own."""
    config = DESK.model_copy(update={"prior": Prior(strength=20, lift=lift)})
    canary = started(config)
    shares = [canary.share]
    for arm, outcome, invalid in units:
        canary, log = look(meet(canary, arm, outcome, invalid_tool_call=invalid))
        assert all(line.after in LEGAL[line.before] for line in log)
        if canary.phase is not Phase.PROGRESSING:
            break
        shares.append(canary.share)
    assert shares == sorted(shares)
    if canary.phase is Phase.PROMOTING:
        assert float(canary.better.log_e) >= math.log(20)
        assert min(float(canary.better.n0), float(canary.better.n1)) >= 16
    if canary.phase is Phase.ABORTED:
        peaks = [canary.thumbs, *canary.guardrails.values()]
        assert float(canary.worse.log_e) >= math.log(20) or any(
            float(each.log_e) >= math.log(100) for each in peaks
        )
