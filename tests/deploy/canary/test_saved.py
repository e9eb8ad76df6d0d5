"""A canary survives its JSON to the last bit, and its evidence can be worked out again from the units that were taken."""

import random
from pathlib import Path

from sqlalchemy import select

from deploy.canary.guardrails import GUARDRAILS
from deploy.canary.saved import load, save
from deploy.canary.trial import Phase, create
from deploy.canary.units import UNITS
from deploy.canary.verbs import abort
from deploy.canary.verdict import saw_episode, took_unit
from tests.deploy.canary.test_verdict import CLEAN, KNOWN, started
from tests.deploy.parts import Stage


def test_every_bit_comes_back() -> None:
    generator = random.Random(3)
    canary = started()
    for _ in range(60):
        arm, share = int(generator.random() < 0.3), generator.choice([0.2, 0.5, 0.37])
        faults = CLEAN | {generator.choice(GUARDRAILS): True}
        canary = saw_episode(canary, arm, propensity=share, faults=faults)
        outcome = generator.choice([0.0, 1.0, None])
        canary = took_unit(canary, arm, propensity=share, outcome=outcome, thumb=outcome)
    assert load(save(canary)) == canary
    ended, _ = abort(canary, actor="ada", now=9)
    assert load(save(ended)) == ended
    assert (load(save(ended)).phase, load(save(ended)).settings) == (Phase.ABORTED, canary.settings)


def test_evidence_follows_from_the_units_in_the_order_they_were_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.offer(1)
    stage.turn()
    stage.traffic(0.5, 0.5, episodes=60)
    stored = stage.canaries()[0].state
    assert stored is not None
    again = create(stored.canary_id, stored.version, settings=stored.settings, known=KNOWN)
    process = again.worse
    with stage.engine.connect() as conn:
        for row in conn.execute(select(UNITS).where(UNITS.c.outcome.is_not(None)).order_by(UNITS.c.taken)):
            arm = float(row.arm == "candidate")
            process = process.update(float(row.outcome), arm, propensity=row.propensity)
    assert (process.log_e, process.n0, process.n1) == (stored.worse.log_e, stored.worse.n0, stored.worse.n1)
    assert stored.units == 60
