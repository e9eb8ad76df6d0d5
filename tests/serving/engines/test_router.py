"""Assignment: the published vectors, the holdout first, shares within binomial bounds, monotone in the share."""

import pytest

from feedback.schemas import AdapterRef, Holdout, TrafficSplit
from serving.engines.router import NoSuchArm, assign, bucket, override, resume

CHAMPION, CANDIDATE, ANCHOR = (AdapterRef(version=f"desk-00000{number}") for number in (1, 2, 0))


def split(**fields: object) -> TrafficSplit:
    base = {"agent": "desk", "generation": 3, "champion": CHAMPION, "at": 0}
    return TrafficSplit.model_validate({**base, **fields})


@pytest.mark.parametrize(
    ("salt", "unit", "expected"),
    [
        ("rollout-1", "ep_0001", 0.941348942361),
        ("rollout-1", "ep_0002", 0.468546763184),
        ("rollout-1", "user-42", 0.999932836243),
        ("rollout-2", "user-42", 0.907732143561),
    ],
)
def test_buckets_are_those_of_the_convention(salt: str, unit: str, expected: float) -> None:
    assert bucket(salt, unit) == pytest.approx(expected, abs=1e-12)


def test_an_empty_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="empty unit"):
        bucket("salt", "")


def test_shares_hold_and_raising_one_only_moves_champions_units() -> None:
    canary = {"candidate": CANDIDATE, "canary_id": "cn_1", "salt": "s"}
    units = [f"ep_{number}" for number in range(4000)]
    arms = {
        share: [assign(split(share=share, **canary), unit, user=None).arm for unit in units]
        for share in (0.1, 0.5)
    }
    for share, found in arms.items():
        spread = 4 * (share * (1 - share) / len(units)) ** 0.5
        assert abs(found.count("candidate") / len(units) - share) < spread
    assert all(
        low != "candidate" or high == "candidate" for low, high in zip(arms[0.1], arms[0.5], strict=True)
    )


def test_the_holdout_is_drawn_first_and_by_user() -> None:
    holdout = Holdout(ref=ANCHOR, share=0.3, salt="h")
    running = split(share=1.0, candidate=CANDIDATE, salt="s", holdout=holdout, canary_id="cn_1")
    held = [user for user in (f"u{number}" for number in range(200)) if bucket("h", user) < 0.3]
    assert 30 < len(held) < 90
    for user in held:
        found = {assign(running, f"ep_{number}", user=user).version for number in range(5)}
        assert found == {ANCHOR.version}
    free = next(user for user in (f"u{number}" for number in range(200)) if bucket("h", user) >= 0.3)
    assert assign(running, "ep_1", user=free).arm == "candidate"


def test_a_stored_assignment_stays_while_its_version_runs_else_it_is_mixed() -> None:
    running = split(share=1.0, candidate=CANDIDATE, salt="s", canary_id="cn_1")
    first = assign(running, "ep_1", user=None)
    assert (first.arm, first.propensity, first.generation, first.canary_id) == ("candidate", 1.0, 3, "cn_1")
    assert resume(first, running) == first
    assert resume(first, split(champion=CANDIDATE, generation=4)) == first
    rolled_back = resume(first, split(generation=4))
    assert (rolled_back.version, rolled_back.flags) == (CHAMPION.version, ("mixed",))
    assert (rolled_back.arm, rolled_back.generation, rolled_back.canary_id) == ("candidate", 3, "cn_1")


def test_a_wished_arm_is_an_evaluation() -> None:
    running = split(share=0.0, candidate=CANDIDATE, salt="s", canary_id="cn_1")
    assert assign(running, "ep_1", user=None, arm="candidate").flags == ("evaluation",)
    stored = assign(running, "ep_1", user=None)
    assert override(stored, running, "candidate").flags == ("evaluation", "mixed")
    with pytest.raises(NoSuchArm):
        assign(running, "ep_1", user=None, arm="holdout")
