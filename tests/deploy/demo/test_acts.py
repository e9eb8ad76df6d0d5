"""The acts of the demo over scripted edges: when learning ends, what is promoted by hand, what counts as rolled back."""

import asyncio
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from deploy.demo.acts import Sabotage, end_by_hand, learn, sabotage
from deploy.demo.children import ChildFailed, Children
from deploy.demo.live import Performance
from deploy.demo.sizes import SHORT, STANDARD
from deploy.demo.stage import Scene, Screen, eta
from deploy.demo.steering import Steering
from deploy.demo.tail import UpdateTail
from deploy.simulation.pool import Counters, UserPool
from deploy.stack.up import Stack, UpError
from deploy.terminal import faults_end_it

Status = dict[str, Any]
HURRIED = replace(SHORT, rated=10, learn_s=20.0, trial_s=0.02)


class Users:
    """A pool in which two more have rated at each look."""

    def __init__(self) -> None:
        self.counters = Counters()


class Controller:
    """Deploy as it says one status after the other, the last for ever. `promoted` and `offered` are what it was asked."""

    def __init__(self, users: Users, statuses: Sequence[Status]) -> None:
        self._users, self._left = users, list(statuses)
        self.looks = 0
        self.promoted: list[str] = []
        self.offered: list[Path] = []

    async def status(self) -> Status:
        self.looks += 1
        self._users.counters.rated += 2
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    async def promote(self, canary_id: str) -> Status:
        self.promoted.append(canary_id)
        return {}

    async def offer(self, adapter: Path) -> Status:
        self.offered.append(adapter)
        return {"id": "cn_bad", "version": "travel-desk-000009"}


class Parts:
    """A stack whose looks say what they are told to."""

    def __init__(self, said: Iterator[list[str]]) -> None:
        self._said = said

    def check(self) -> list[str]:
        return next(self._said, [])


class Updates:
    def counts(self) -> dict[str, int]:
        return {"accepted": 3, "refused": 1}


class Show:
    """A performance, and what its terminal has shown."""

    def __init__(self, *statuses: Status, parts: Iterator[list[str]] = iter(())) -> None:
        users = Users()
        self.controller = Controller(users, statuses)
        self._shown = io.StringIO()
        self.performance = Performance(
            cast(UserPool, users),
            cast(Steering, self.controller),
            cast(Stack, Parts(parts)),
            cast(UpdateTail, Updates()),
            Console(file=self._shown, width=400),
            look_s=0.001,
        )

    @property
    def shown(self) -> str:
        return self._shown.getvalue()


PROMOTED = {"verdicts": {"promoted": 1}}
NOTHING: Status = {"verdicts": {"promoted": 0}}


async def test_learning_ends_once_enough_is_rated_and_something_was_promoted() -> None:
    late_quota, late_promotion = Show(PROMOTED), Show(*[NOTHING] * 8, PROMOTED)

    await learn(late_quota.performance, HURRIED)
    await learn(late_promotion.performance, HURRIED)

    assert late_quota.controller.looks == 5
    assert late_promotion.controller.looks == 9


async def test_learning_without_a_promotion_goes_on_until_its_time_is_nearly_up() -> None:
    show = Show(NOTHING)

    await learn(show.performance, replace(HURRIED, learn_s=0.2))

    assert show.controller.looks > 5


async def test_a_trial_is_ended_by_hand_once() -> None:
    show = Show({}, {"canary": {"id": "cn_1"}}, {"canary": {"id": "cn_1"}})

    await end_by_hand(show.performance, HURRIED, serves_s=0.02)

    assert show.controller.promoted == ["cn_1"]


async def test_without_a_trial_nothing_is_promoted() -> None:
    show = Show({})

    await end_by_hand(show.performance, replace(HURRIED, learn_s=0.05), serves_s=0.02)

    assert show.controller.promoted == []


@dataclass(frozen=True)
class Saboteur(Children):
    """A child that has its adapter at once, or fails."""

    folder: Path = Path()
    agent_file: Path = Path()
    kafka: str = ""
    seed: int = 0
    failure: str = ""

    async def sabotage(self, adapter: Path | None, out: Path) -> Status:
        await asyncio.sleep(0)
        if self.failure:
            raise ChildFailed(self.failure)
        return {"success": 0.02, "faulty_share": 0.7}


def ended(verdict: str) -> Status:
    return {"recent": [{"id": "cn_1", "verdict": "promoted"}, {"id": "cn_bad", "verdict": verdict}]}


@pytest.mark.parametrize(("verdict", "is_rolled_back"), [("rolled_back", True), ("aborted", False)])
async def test_only_the_canarys_own_verdict_is_a_rollback(verdict: str, is_rolled_back: bool) -> None:
    show = Show({"recent": [{"id": "cn_bad", "verdict": None}]}, ended(verdict))

    became = await sabotage(show.performance, STANDARD, Saboteur(), champion=None, out=Path("bad"))

    assert became == Sabotage("travel-desk-000009", is_rolled_back, 0.02, 0.7)
    assert show.controller.offered == [Path("bad")]


async def test_a_trial_that_outlasts_its_time_is_no_rollback() -> None:
    show = Show({"recent": [{"id": "cn_bad", "verdict": None}]})

    became = await sabotage(show.performance, HURRIED, Saboteur(), champion=None, out=Path("bad"))

    assert not became.rolled_back


async def test_a_saboteur_that_fails_is_said_and_is_no_rollback() -> None:
    show = Show({})

    became = await sabotage(
        show.performance,
        HURRIED,
        Saboteur(failure="sabotage ended with 1: no memory"),
        champion=None,
        out=Path("bad"),
    )

    assert (became.rolled_back, became.version, show.controller.offered) == (False, "none", [])
    assert "no memory" in show.shown


def test_a_part_that_is_lost_during_a_look_ends_the_demo_with_1_and_a_restart_is_a_line() -> None:
    def parts() -> Iterator[list[str]]:
        yield ["kafka died and was started again; see kafka.log"]
        raise UpError("kafka died (again and again): disk full; see kafka.log")

    show = Show(NOTHING, parts=parts())

    with pytest.raises(typer.Exit) as ending, faults_end_it():
        asyncio.run(learn(show.performance, HURRIED))

    assert ending.value.exit_code == 1
    assert "kafka died and was started again" in show.shown


@pytest.mark.parametrize("canary", [None, {"version": "v-1", "phase": "Progressing", "share": 0.2}])
def test_a_plain_line_has_every_figure_at_every_moment(canary: Status | None) -> None:
    shown = io.StringIO()
    status = {"canary": canary, "share": 0.2 if canary else 0.0, "split": {"champion": {"version": "v-0"}}}
    scene = Scene("users teach", 0.25, {"episodes": 40, "rated": 20}, {"accepted": 3}, status)

    Screen(Console(file=shown, width=400)).line(scene)

    line = shown.getvalue()
    assert line.startswith("users teach 25% · episodes 40 · rated 20 · failed 0 · ")
    assert "updates 3 accepted, 0 shrunk, 0 refused · champion v-0" in line
    assert ("live share 20%" if canary else "live share 0%") in line
    assert "evidence none yet" in line and "ETA" in line
    assert (eta(60.0, 0.25), eta(60.0, 0.0), eta(60.0, 1.0)) == ("3:00", "?", "0:00")
