"""Which adapters the held-out figures stand for: the head that the trainer goes on from, and the champion's own bytes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.children import Children
from deploy.demo.facts import Facts
from deploy.demo.heldout import measure, standing_head
from deploy.demo.sizes import SHORT
from deploy.demo.tail import AdapterMissing, UpdateTail
from deploy.evaluate import Evaluation
from feedback.agent_file import load_agent_file
from feedback.bus import MemoryBus
from feedback.manifest import CONFIG, WEIGHTS, seal
from feedback.schemas import UPDATES, AdapterRef, Decision, TrafficSplit, Update, Verdict, VersionVerdict
from tests.deploy.demo.story import AGENT, BASE, FIRST

SECOND = f"{AGENT}-000002"


def update(number: int, *, at: int, parent: str = BASE, **changes: Any) -> Update:
    fields: dict[str, Any] = {
        "update_id": f"up_{number}",
        "agent": AGENT,
        "parent": parent,
        "reference": BASE,
        "decision": Decision.ACCEPTED,
        "digest": f"sha256:{number}",
        "at": at,
    }
    return Update.model_validate(fields | changes)


def split(*verdicts: tuple[str, Verdict], at: int, champion: AdapterRef | None = None) -> TrafficSplit:
    known = tuple(VersionVerdict(version=name, verdict=verdict, reason="why") for name, verdict in verdicts)
    return TrafficSplit(
        agent=AGENT,
        generation=at,
        champion=champion or AdapterRef(version=BASE),
        verdicts=known,
        at=at,
    )


def told(updates: list[Update], splits: list[TrafficSplit]) -> Facts:
    return Facts(updates={each.update_id: each for each in updates}, splits=splits)


OFFERED = update(8, at=80, version=FIRST, uri="models:/m-1")


@pytest.mark.parametrize("verdict", [Verdict.ROLLED_BACK, Verdict.ABORTED])
def test_what_was_in_flight_when_its_line_was_taken_back_is_no_head(verdict: Verdict) -> None:
    before, in_flight = update(7, at=70), update(9, at=101, parent=FIRST)
    facts = told([before, OFFERED, in_flight], [split((FIRST, verdict), at=100)])

    assert standing_head(facts) is None
    since = update(10, at=120)
    assert standing_head(told([before, OFFERED, in_flight, since], facts.splits)) == since


def test_what_descends_from_an_offer_of_a_line_taken_back_is_no_head() -> None:
    second = update(9, at=90, parent=FIRST, version=SECOND, uri="models:/m-2")
    in_flight = update(10, at=101, parent=SECOND)

    assert (
        standing_head(told([OFFERED, second, in_flight], [split((FIRST, Verdict.ROLLED_BACK), at=100)]))
        is None
    )


def test_what_others_offered_and_lost_leaves_the_head() -> None:
    sabotage = split((f"{AGENT}-000009", Verdict.ROLLED_BACK), at=100)

    assert standing_head(told([OFFERED], [sabotage])) == OFFERED
    refused = update(9, at=110, decision=Decision.REFUSED)
    assert standing_head(told([OFFERED, refused], [sabotage])) == OFFERED


def adapter(folder: Path, content: str) -> str:
    """A sealed adapter folder; its digest."""
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_text(content)
    (folder / CONFIG).write_text("{}")
    return seal(folder)


class Away(RuntimeError):
    """What this MLflow raises while it is away."""


class Demo:
    """A trainer's folder, a bus with its updates, and an MLflow that has one adapter."""

    def __init__(self, home: Path) -> None:
        self.trainer, self.copies, self.mlflow = home / "trainer", home / "heads", home / "mlflow"
        self.bus = MemoryBus()
        self.tail = UpdateTail(self.bus, self.trainer, self.copies, download=self.download, away=Away)
        self.copies.mkdir()

    def download(self, uri: str, digest: str, *, into: Path) -> Path:
        if not self.mlflow.exists():
            raise Away("MLflow is away")
        return self.mlflow.rename(into)

    def tell(self, *updates: Update) -> None:
        for each in updates:
            self.bus.append(UPDATES, AGENT, each.to_bytes())
        self.tail.counts()


def test_a_champion_whose_copy_is_missing_is_fetched_or_it_is_said_in_one_line(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    digest = adapter(demo.mlflow, "champion")
    demo.tell(update(1, at=1, digest=digest))
    assert demo.tail.copies() == {}

    with pytest.raises(AdapterMissing, match="never offered"):
        demo.tail.find(digest, uri=None)
    folder = demo.tail.find(digest, uri="models:/m-1")
    assert (folder / WEIGHTS).read_text() == "champion"
    assert demo.tail.find(digest, uri=None) == folder
    with pytest.raises(AdapterMissing, match="MLflow is away"):
        demo.tail.find("sha256:of-a-sabotage", uri="models:/m-2")


def test_a_copy_outlives_the_trainers_own(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    digest = adapter(demo.trainer / "up_1", "head")
    demo.tell(update(1, at=1, digest=digest))
    for path in (demo.trainer / "up_1").iterdir():
        path.unlink()

    assert demo.tail.find(digest, uri=None) == demo.copies / "up_1"


class Measured(Children):
    """Children that say at once how well the adapter of a folder does: as many successes as its weights have letters."""

    async def evaluate(self, versions: Any, *, tasks: int, samples: int) -> dict[str, Evaluation]:
        await asyncio.sleep(0)
        won = {name: len((Path(where) / WEIGHTS).read_text()) for name, where in versions.items()}
        return {
            name: Evaluation(tasks, samples, 0, 1.0, (1.0,) * n + (0.0,) * (tasks - n), 1, 0)
            for name, n in won.items()
        }


async def test_head_and_champion_are_measured_on_their_own_bytes(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    agent = load_agent_file(Path("deploy/profiles/desk/agent.yaml"))
    children = Measured(tmp_path, tmp_path, "", 0)
    offered = adapter(demo.mlflow, "xx")
    later = adapter(demo.trainer / "up_9", "xxxxx")
    first = OFFERED.model_copy(update={"digest": offered})
    last = update(9, at=90, parent=FIRST, digest=later)
    demo.tell(first, last)
    champion = AdapterRef(version=FIRST, uri="models:/m-1", digest=offered)
    facts = told([first, last], [split((FIRST, Verdict.PROMOTED), at=85, champion=champion)])

    held = await measure(agent, facts, children, sizes=SHORT, adapters=demo.tail)

    assert (sum(held.champion.success), sum(held.head.success)) == (2, 5)
    assert [sum(evaluation.success) for _, evaluation in held.curve] == [5]
    lost = told([first, update(10, at=99, parent=FIRST)], facts.splits)
    with pytest.raises(AdapterMissing):
        await measure(agent, lost, children, sizes=SHORT, adapters=demo.tail)
