"""Units to evidence to verdict: what closed is counted, what is due is taken, and the trial is looked at after each.

A unit belongs to the canary it was assigned under and to no other; the same transaction marks it and saves what it moved.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from deploy.canary import anchor, history, ledger, units, verbs
from deploy.canary.guardrails import Thresholds, faults, thresholds
from deploy.canary.steering import SPENT, Steering
from deploy.canary.trial import CONTROLLER, RUNNING, Canary, Phase
from deploy.canary.verdict import judge, saw_episode, took_unit
from feedback.outbox import Outbox

STUCK_MS = 600_000
STUCK_EPISODES = 20
"""So many episodes passed a candidate by and none met it: at once where the gateway put the split in force without it
(its engines refused the adapter), after ten minutes where the split never came into force."""

_ARMS = {"champion": 0, "candidate": 1}
ANCHOR = "anchor"


def judge_units(conn: Connection, steering: Steering, *, watermarks: units.Watermarks) -> Sequence[Row[Any]]:
    """Everything that can be counted now, in order. Returns the units taken."""
    now = steering.clock()
    trial = _Trial(conn, steering, now=now)
    if closed := units.unseen(conn):
        limits = trial.limits()
        for row in closed:
            trial.see(row, limits=limits)
        units.mark_seen(conn, closed)
    taken = units.due(conn, watermarks, now=now)
    for row in taken:
        trial.take(row)
    units.mark_taken(conn, taken)
    trial.look()
    trial.check_it_is_met()
    trial.close()
    return taken


class _Trial:
    """The active canary during one turn: loaded once, looked at after every unit, saved once."""

    def __init__(self, conn: Connection, steering: Steering, *, now: int) -> None:
        row = ledger.active_canary(conn)
        self._conn = conn
        self._steering = steering
        self._now = now
        self._first_generation = 0 if row is None else row.first_generation or 0
        self._canary = None if row is None else row.state
        self._newer_waits = bool(ledger.list_canaries(conn, Phase.PENDING))
        self._allowance = steering.allowance(conn)
        self._dirty = False

    def limits(self) -> Thresholds:
        """What counts as slow and as long, from episodes that were counted before this turn."""
        champion = history.champions(self._conn)[-1].version
        if self._canary is None:
            return Thresholds()
        return thresholds(
            units.trailing(self._conn, champion),
            beside=units.trailing(self._conn, champion, canary_id=self._canary.canary_id),
        )

    def see(self, row: Row[Any], *, limits: Thresholds) -> None:
        """An episode closed."""
        canary = self._concerned(row)
        if canary is None:
            return
        found = faults(units.indicators(row), limits)
        self._change(saw_episode(canary, _ARMS[row.arm], propensity=row.propensity, faults=found))

    def take(self, row: Row[Any]) -> None:
        """A unit reached its cut-off."""
        canary = self._concerned(row)
        if canary is None:
            return
        self._change(
            took_unit(
                canary,
                _ARMS[row.arm],
                propensity=row.propensity,
                outcome=row.outcome,
                thumb=row.thumb,
            )
        )

    def look(self) -> None:
        """Judge, and write down what follows."""
        if self._canary is None:
            return
        moved = judge(self._canary, now=self._now, newer_waits=self._newer_waits, allowance=self._allowance)
        if moved[1]:
            self._canary = self._steering.record(self._conn, moved)
            self._dirty = False

    def check_it_is_met(self) -> None:
        """A candidate that serving cannot load would otherwise block the queue until its deadline."""
        canary = self._canary
        if canary is None or canary.phase is not Phase.PROGRESSING or canary.episodes0 or canary.episodes1:
            return
        missed = units.turned_away(self._conn, generation=self._first_generation)
        why = f"its engines refused {canary.version}"
        since = canary.deadline_from + STUCK_MS
        if missed < STUCK_EPISODES and self._now > since:
            missed = units.bypassed(self._conn, canary.canary_id, since=since)
            why = f"no engine runs {canary.version}"
        if missed >= STUCK_EPISODES:
            reason = f"{missed} episodes passed it by: {why}"
            self._canary = self._steering.record(self._conn, verbs.fail(canary, reason=reason, now=self._now))

    def close(self) -> None:
        """Save evidence that moved nothing."""
        if self._dirty and self._canary is not None:
            ledger.save_canary(self._conn, self._canary, now=self._now)

    def _concerned(self, row: Row[Any]) -> Canary | None:
        canary = self._canary
        if (
            canary is None
            or canary.phase not in RUNNING
            or row.canary_id != canary.canary_id
            or row.generation < self._first_generation
            or row.arm not in _ARMS
            or row.left_out is not None
        ):
            return None
        return canary

    def _change(self, canary: Canary) -> None:
        self._canary, self._dirty = canary, True
        self.look()


def compare_with_anchor(conn: Connection, steering: Steering, *, taken: Sequence[Row[Any]]) -> None:
    """The holdout's e-process: the first outcome of each person in this champion's reign."""
    reign, settings = history.champions(conn)[-1], steering.agent.canary
    if reign.version == steering.agent.base_version or not taken:
        return
    stored = ledger.read_note(conn, ANCHOR)
    state = None if stored is None else anchor.from_json(stored)
    if state is None or state.reign != reign.seq:
        state = anchor.start(reign.seq, settings)
    for row in taken:
        if _compares(row, reign) and ledger.first_of_person(conn, reign.seq, row.person):
            state = anchor.took_person(
                state,
                float(row.arm == "champion"),
                outcome=float(row.outcome),
                holdout=steering.agent.holdout.share,
                share=row.propensity,
            )
    ledger.write_note(conn, ANCHOR, anchor.to_json(state))
    if anchor.is_worse(state, settings):
        steering.return_to_anchor(conn, reason="the live line is worse than the anchor")
    elif anchor.is_better(state, settings) and (ledger.read_note(conn, SPENT) or 0.0) > 0.0:
        ledger.write_note(conn, SPENT, 0.0)
        reason = "the live line is better than the anchor: the budget of losses is whole again"
        history.add_note(conn, reason, actor=CONTROLLER, now=steering.clock(), champion=reign.version)


def _compares(row: Row[Any], reign: history.Reign) -> bool:
    if row.outcome is None or row.left_out is not None or row.generation < reign.generation:
        return False
    return bool(row.arm == "holdout" or (row.arm == "champion" and row.version == reign.version))


def confirm_delivery(conn: Connection, steering: Steering, *, outbox: Outbox) -> None:
    """Promoting -> Succeeded once the split that says so has left."""
    row = ledger.active_canary(conn)
    if row is not None and row.state is not None and row.phase is Phase.PROMOTING and outbox.depth() == 0:
        steering.record(conn, verbs.delivered(row.state, now=steering.clock()))
