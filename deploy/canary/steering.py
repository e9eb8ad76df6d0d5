"""Every act on the canaries, a person's or the controller's: one transaction that moves the state, appends the event,
and writes the split that follows from both into the outbox. Nothing here is half done after a kill.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import uuid_utils
from sqlalchemy import Connection, Engine

from deploy.canary import history, ledger, units, verbs
from deploy.canary.trial import (
    CONTROLLER,
    RUNNING,
    Canary,
    Illegal,
    Moved,
    Phase,
    Transition,
    create,
    observed_loss,
)
from deploy.canary.verdict import begin
from feedback.agent_file import AgentFile
from feedback.outbox import Outbox
from feedback.schemas import TRAFFIC_SPLITS, AdapterRef, Holdout, TrafficSplit, Verdict

TRAINER = "trainer"
SPENT = "spent"
FIRST = 1
"""Generation of the first split: serving without any split is at 0, and takes only a newer one."""
REFUSING = frozenset({Verdict.ROLLED_BACK, Verdict.ABORTED})


class Unknown(LookupError):
    """There is no such canary or version."""


class Refused(ValueError):
    """This version may not be tried; the text says why and what would be an explicit act."""


@dataclass(frozen=True)
class Offered:
    """The canary of an offer, and whether this call made it."""

    canary_id: str
    new: bool


class Steering:
    """The one writer of the ledger and of the splits. `clock` gives milliseconds."""

    def __init__(self, engine: Engine, outbox: Outbox, agent: AgentFile, *, clock: Callable[[], int]) -> None:
        self.agent = agent
        self.clock = clock
        self.engine = engine
        self._outbox = outbox
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All or nothing, one at a time in this process."""
        with self._one_at_a_time, self.engine.begin() as conn:
            yield conn

    def open(self) -> None:
        """First start: the declared start is champion and anchor."""
        with self.transaction() as conn:
            if history.newest_split(conn) is not None:
                return
            now, base = self.clock(), AdapterRef(version=self.agent.base_version)
            ledger.add_version(conn, base, parent=None, source="start", now=now)
            history.crown(conn, base.version, kind="start", generation=0, now=now)
            history.add_note(conn, "first start", actor=CONTROLLER, now=now, version=base.version)
            self.split(conn, now=now)

    def offer(self, conn: Connection, ref: AdapterRef, *, parent: str | None, actor: str) -> Offered:
        """A version asks to be tried. Offering what waits or runs already changes nothing. Raises Refused."""
        now = self.clock()
        self._refuse_nameless(ref)
        known = ledger.find_version(conn, ref.version)
        if known is not None and known.digest != ref.digest:
            raise Refused(f"{ref.version} stands for {known.digest}; a name is never bound to other bytes")
        if (refused := ledger.refused_digest(conn, ref.digest)) is not None:
            raise Refused(
                f"{refused.version} was refused ({refused.refused}): retry its canary to try it again"
            )
        if ref.version == history.champions(conn)[-1].version:
            raise Refused(f"{ref.version} is the champion already")
        for row in ledger.list_canaries(conn):
            if row.version == ref.version and (row.finished_at is None or actor == TRAINER):
                return Offered(row.canary_id, new=False)
        if known is None:
            ledger.add_version(conn, ref, parent=parent, source=actor, now=now)
        return Offered(self.enqueue(conn, ref.version, actor=actor), new=True)

    def _refuse_nameless(self, ref: AdapterRef) -> None:
        """Serving and the numbering rely on it: a numbered version of this agent that stands for bytes."""
        prefix, _, number = ref.version.rpartition("-")
        if prefix != self.agent.agent or not re.fullmatch(r"[0-9]{6}", number):
            raise Refused(f"{ref.version!r:.100} is no version name of {self.agent.agent}")
        if ref.version != self.agent.base_version and not (ref.uri and ref.digest):
            raise Refused(f"{ref.version} names no bytes: its digest or its address is missing")

    def enqueue(self, conn: Connection, version: str, *, actor: str) -> str:
        """A new canary at the end of the queue; a newer offer of the trainer takes the place of its waiting one."""
        now = self.clock()
        canary_id = f"cn_{uuid_utils.uuid7().hex}"
        if actor == TRAINER:
            for row in ledger.list_canaries(conn, Phase.PENDING):
                if row.actor == TRAINER:
                    reason = f"{version} is newer"
                    self.record(conn, verbs.supersede(self._state(conn, row), reason=reason, now=now))
        ledger.add_canary(conn, canary_id, version, actor=actor, now=now)
        history.add_note(conn, "offered", actor=actor, now=now, canary_id=canary_id, version=version)
        return canary_id

    def admit(self, conn: Connection) -> None:
        """When nothing is on trial, the next in the queue begins: what people offered first, then the trainer's."""
        if ledger.active_canary(conn) is not None:
            return
        waiting = ledger.list_canaries(conn, Phase.PENDING)
        for row in sorted(waiting, key=lambda each: each.actor == TRAINER):
            now, canary = self.clock(), self._state(conn, row)
            ancestor = ledger.refused_ancestor(conn, row.version)
            if row.actor == TRAINER and ancestor is not None:
                reason = f"rejected: its ancestor {ancestor} was refused"
                self.record(conn, verbs.abort(canary, actor=CONTROLLER, now=now, reason=reason))
                continue
            self.record(conn, begin(canary, now=now))
            split = history.newest_split(conn)
            assert split is not None
            ledger.set_first_generation(conn, row.canary_id, split.generation)
            return

    def record(self, conn: Connection, moved: Moved) -> Canary:
        """Write down where a canary went and everything that follows from it."""
        canary, log = moved
        now = self.clock()
        for line in log:
            history.add_event(conn, canary.canary_id, line)
        ledger.save_canary(conn, canary, now=now)
        if log and canary.verdict is not None and canary.phase is not Phase.SUCCEEDED:
            self._conclude(conn, canary, log[-1])
        if log:
            self.split(conn, now=now)
        return canary

    def _conclude(self, conn: Connection, canary: Canary, line: Transition) -> None:
        assert canary.verdict is not None
        history.add_verdict(conn, canary.version, canary.verdict, reason=line.reason, now=line.at)
        if canary.verdict in REFUSING:
            ledger.refuse(conn, canary.version, line.reason)
        if canary.verdict is Verdict.PROMOTED:
            history.crown(
                conn, canary.version, kind="promoted", generation=self._next_generation(conn), now=line.at
            )
            spent = (ledger.read_note(conn, SPENT) or 0.0) + observed_loss(canary)
            ledger.write_note(conn, SPENT, spent)

    def allowance(self, conn: Connection) -> float:
        """How much of the margin promotions with a lower observed mean may still spend."""
        return max(0.0, self.agent.canary.margin - (ledger.read_note(conn, SPENT) or 0.0))

    def split(self, conn: Connection, *, now: int) -> None:
        """The split that follows from the ledger; a new generation only when it differs from the last."""
        last = history.newest_split(conn)
        active = ledger.active_canary(conn)
        candidate = active if active is not None and active.phase in RUNNING else None
        wanted = TrafficSplit(
            agent=self.agent.agent,
            generation=FIRST if last is None else last.generation,
            champion=ledger.reference(conn, history.champions(conn)[-1].version),
            candidate=None if candidate is None else ledger.reference(conn, candidate.version),
            canary_id=None if candidate is None else candidate.canary_id,
            share=0.0 if candidate is None or candidate.state is None else candidate.state.share,
            salt="" if candidate is None else candidate.canary_id,
            holdout=self._holdout(conn),
            verdicts=history.newest_verdicts(conn),
            at=now if last is None else last.at,
        )
        if wanted == last:
            return
        if last is not None:
            wanted = wanted.model_copy(update={"generation": last.generation + 1, "at": now})
        history.add_split(conn, wanted)
        self._outbox.put(conn, TRAFFIC_SPLITS, wanted.agent, wanted.to_bytes(), now)

    def _holdout(self, conn: Connection) -> Holdout | None:
        share = self.agent.holdout.share
        if share == 0:
            return None
        start = history.champions(conn)[0].version
        return Holdout(ref=ledger.reference(conn, start), share=share, salt=f"{self.agent.agent}:holdout")

    def pause(self, canary_id: str, *, actor: str) -> None:
        """Hold the trial where it is."""
        self._act(canary_id, lambda canary, now: verbs.pause(canary, actor=actor, now=now))

    def resume(self, canary_id: str, *, actor: str) -> None:
        """Go on."""
        self._act(canary_id, lambda canary, now: verbs.resume(canary, actor=actor, now=now))

    def abort(self, canary_id: str, *, actor: str) -> None:
        """Stop it; the version is refused from now on."""
        self._act(canary_id, lambda canary, now: verbs.abort(canary, actor=actor, now=now))

    def promote(self, canary_id: str, *, actor: str, full: bool) -> None:
        """Leave the current step, or with `full` make the candidate champion at once."""
        verb = verbs.promote if full else verbs.skip_step
        self._act(canary_id, lambda canary, now: verb(canary, actor=actor, now=now))

    def retry(self, canary_id: str, *, actor: str) -> str:
        """The explicit act that lets a finished version be tried again, with fresh evidence; the new canary's id."""
        with self.transaction() as conn:
            row = self.find(conn, canary_id)
            if row.finished_at is None or row.verdict is Verdict.PROMOTED:
                raise Illegal(f"retry needs a canary that was not promoted; {canary_id} is {row.phase}")
            for other in ledger.list_canaries(conn):
                if other.version == row.version and other.finished_at is None:
                    raise Illegal(f"{row.version} is tried again already, as {other.canary_id}")
            ledger.refuse(conn, row.version, None)
            return self.enqueue(conn, row.version, actor=actor)

    def undo(self, canary_id: str, *, actor: str) -> str:
        """Take back the promotion that made the present champion: the one before returns. Gives its version."""
        with self.transaction() as conn:
            row, stack = self.find(conn, canary_id), history.champions(conn)
            if len(stack) < 2:
                raise Illegal(f"{stack[-1].version} is the first champion: there is nothing to go back to")
            crowning = ledger.newest_promotion(conn, stack[-1].version)
            if crowning is None or crowning.canary_id != row.canary_id:
                by = f"it was promoted by {crowning.canary_id}" if crowning else "it came back by itself"
                raise Illegal(f"{canary_id} did not make {stack[-1].version} champion; {by}")
            self._dethrone(conn, stack[-2].version, kind=history.UNDO, reason="undone", actor=actor)
            return stack[-2].version

    def return_to_anchor(self, conn: Connection, *, reason: str) -> None:
        """The live line lost to the start: the start is champion again."""
        start = history.champions(conn)[0].version
        self._dethrone(conn, start, kind="anchor", reason=reason, actor=CONTROLLER)

    def _dethrone(self, conn: Connection, version: str, *, kind: str, reason: str, actor: str) -> None:
        now, fallen = self.clock(), history.champions(conn)[-1].version
        active = ledger.active_canary(conn)
        if active is not None and active.state is not None and active.phase in RUNNING:
            why = f"its champion {fallen} was taken back"
            self.record(conn, verbs.abort(active.state, actor=actor, now=now, reason=why))
        history.crown(conn, version, kind=kind, generation=self._next_generation(conn), now=now)
        ledger.refuse(conn, version, None)
        if fallen != self.agent.base_version:
            history.add_verdict(conn, fallen, Verdict.ROLLED_BACK, reason=reason, now=now)
            ledger.refuse(conn, fallen, reason)
        history.add_note(conn, reason, actor=actor, now=now, champion=version, fallen=fallen)
        self.split(conn, now=now)

    def find(self, conn: Connection, canary_id: str) -> ledger.CanaryRow:
        """Raises Unknown."""
        row = ledger.find_canary(conn, canary_id)
        if row is None:
            raise Unknown(canary_id)
        return row

    def _act(self, canary_id: str, verb: Callable[[Canary, int], Moved]) -> None:
        with self.transaction() as conn:
            canary = self._state(conn, self.find(conn, canary_id))
            self.record(conn, verb(canary, self.clock()))

    def _state(self, conn: Connection, row: ledger.CanaryRow) -> Canary:
        """As stored, or as it would begin now: what is known of the champion is fixed when the trial starts."""
        if row.state is not None and row.phase is not Phase.PENDING:
            return row.state
        champion = history.champions(conn)[-1].version
        fresh = create(
            row.canary_id, row.version, settings=self.agent.canary, known=units.known_of(conn, champion)
        )
        return replace(fresh, reason=row.reason)

    def _next_generation(self, conn: Connection) -> int:
        last = history.newest_split(conn)
        return 0 if last is None else last.generation + 1
