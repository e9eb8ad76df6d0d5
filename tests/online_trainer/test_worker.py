"""The loop on a memory bus: it learns within its bounds, follows the champion, and no outage stops it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from feedback.agent_file import AgentFile
from feedback.bus import MemoryBus
from feedback.manifest import verify
from feedback.schemas import (
    CREDITS,
    DEAD_LETTERS,
    EXPERIENCES,
    TRAFFIC_SPLITS,
    UPDATES,
    AdapterRef,
    Correction,
    Credit,
    Decision,
    Experience,
    TrafficSplit,
    Update,
    Verdict,
    VersionVerdict,
)
from online_trainer.checkpoint import Lease
from online_trainer.lessons import CHILD
from online_trainer.policy import state_digest
from online_trainer.publish import Published
from online_trainer.settle import is_due
from online_trainer.trainer import Trainer
from online_trainer.worker import run
from tests.online_trainer import tiny

V1, V2 = "tiny-desk-000001", "tiny-desk-000002"


class Idle(Exception):
    """Nothing is left to do."""


def stop_when_idle(name: str) -> None:
    if name == "idle":
        raise Idle


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with Lease(tmp_path) as held:
        yield held


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def trainer(tmp_path: Path, agent: AgentFile, bus: MemoryBus, lease: Lease) -> Trainer:
    return tiny.open_tiny(tmp_path, agent, bus, lease=lease, boundary=stop_when_idle)


def work(trainer: Trainer) -> None:
    with pytest.raises(Idle):
        run(trainer, threading.Event(), poll_s=0)


def feed(trainer: Trainer, bus: MemoryBus, *, first: int, count: int = 24, version: str = tiny.BASE) -> None:
    tiny.publish_experiences(
        bus, tiny.dialogues(trainer.policy, count, first=first, seed=first, version=version)
    )


def updates(bus: MemoryBus) -> list[Update]:
    return [Update.from_bytes(record.value) for record in bus.read(UPDATES)]


def say(bus: MemoryBus, generation: int, champion: str, *verdicts: tuple[str, Verdict]) -> None:
    split = TrafficSplit(
        agent="tiny-desk",
        generation=generation,
        champion=AdapterRef(version=champion),
        verdicts=tuple(VersionVerdict(version=v, verdict=verdict, reason="") for v, verdict in verdicts),
        at=0,
    )
    bus.append(TRAFFIC_SPLITS, "tiny-desk", split.to_bytes())


def register(trainer: Trainer, version: str) -> None:
    """What the publisher does once MLflow answers."""
    offers = [publication for publication in trainer.progress.publications if publication.offer]
    trainer.parts.publisher.finished(Published(offers[-1], "models:/m-1", version))
    work(trainer)


def test_praise_makes_a_choice_likelier_within_the_trust_region(
    trainer: Trainer, bus: MemoryBus, agent: AgentFile
) -> None:
    start = tiny.good_share(trainer.policy)
    for batch in range(8):
        feed(trainer, bus, first=100 * batch)
        work(trainer)
    made = [*updates(bus), *(publication.update for publication in trainer.progress.publications)]
    refuse = agent.training.trust.k3_old_refuse
    assert tiny.good_share(trainer.policy) > start + 0.01
    assert trainer.progress.accepted >= 6
    assert all(u.measures["k3_old"] <= refuse for u in made if u.decision is not Decision.REFUSED)
    assert all(u.measures["rater_share"] <= 0.1 + 1e-6 for u in made if "rater_share" in u.measures)


def test_every_episode_of_a_batch_gets_a_credit_once(trainer: Trainer, bus: MemoryBus) -> None:
    feed(trainer, bus, first=0)
    work(trainer)
    credits = [Credit.from_bytes(record.value) for record in bus.read(CREDITS)]
    (update,) = [u for u in updates(bus) if u.version is None]
    assert sorted(credit.episode_id for credit in credits) == sorted(update.episode_ids)
    silent = {c.episode_id: [turn.unused for turn in c.turns] for c in credits}
    assert silent["ep_000000"] == ["no_signal", "no_signal"]
    assert silent["ep_000001"] == [None, None]
    rated = next(c for c in credits if c.episode_id == "ep_000001")
    assert rated.turns[1].reward in (1.0, -1.0)
    assert rated.turns[0].advantage is not None


def test_a_late_rating_trains_no_policy_again(trainer: Trainer, bus: MemoryBus) -> None:
    feed(trainer, bus, first=0)
    work(trainer)
    before = state_digest(trainer.policy.state())
    late = [e.model_copy(update={"revision": 2, "id": "x"}) for e in tiny.dialogues(trainer.policy, 24)]
    tiny.publish_experiences(bus, late)
    work(trainer)
    assert state_digest(trainer.policy.state()) == before
    assert trainer.progress.update == 1
    assert all(lesson.revision == 2 for lesson in trainer.replay.lessons.values())


def test_the_adapter_of_an_accepted_update_is_sealed_and_probed(
    trainer: Trainer, bus: MemoryBus, tmp_path: Path
) -> None:
    feed(trainer, bus, first=0)
    work(trainer)
    (update,) = updates(bus)
    assert update.decision is not Decision.REFUSED
    folder = tmp_path / "adapters" / update.update_id
    assert verify(folder, digest=update.digest) == update.digest
    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "probe.json",
        "manifest.json",
    }


def offered(trainer: Trainer, bus: MemoryBus, *, first: int, version: str) -> None:
    """Two accepted updates make an offer (offer.min_updates = 2), which MLflow then takes."""
    number = first
    while not any(p.offer for p in trainer.progress.publications):
        feed(trainer, bus, first=number)
        work(trainer)
        number += 100
    register(trainer, version)


def test_an_offer_is_told_once_it_has_its_version(trainer: Trainer, bus: MemoryBus) -> None:
    offered(trainer, bus, first=0, version=V1)
    offers = [update for update in updates(bus) if update.version is not None]
    assert [(o.version, o.uri, o.parent) for o in offers] == [(V1, "models:/m-1", tiny.BASE)]
    assert len({update.update_id for update in updates(bus)}) == len(updates(bus))
    assert trainer.progress.versions[V1].at_update == 2


@pytest.mark.parametrize(
    ("accepted", "k3_mu", "due"),
    [
        (7, 0.0, False),
        (8, 0.0, True),
        (4, 0.0101, True),
        (4, 0.0099, False),
        (3, 0.02, False),
        (4, math.nan, False),
    ],
)
def test_a_head_that_has_gone_half_of_its_way_is_offered_early(
    accepted: int, k3_mu: float, due: bool
) -> None:
    assert is_due(accepted, k3_mu, usual=8, limit=0.02) is due


def test_a_rolled_back_line_returns_to_the_champion_bit_for_bit(trainer: Trainer, bus: MemoryBus) -> None:
    offered(trainer, bus, first=0, version=V1)
    champion = state_digest(trainer.policy.state())
    moments = len(trainer.optimizer.state_dict()["state"])
    say(bus, 1, V1, (V1, Verdict.PROMOTED))
    offered(trainer, bus, first=1000, version=V2)
    assert state_digest(trainer.policy.state()) != champion
    say(bus, 2, V1, (V1, Verdict.PROMOTED), (V2, Verdict.ROLLED_BACK))
    work(trainer)
    assert state_digest(trainer.policy.state()) == champion
    assert len(trainer.optimizer.state_dict()["state"]) == moments
    assert trainer.progress.versions[V2].rejected
    assert trainer.progress.accepted == trainer.progress.versions[V1].at_update
    # I14: told again, it does nothing again
    say(bus, 3, V1, (V1, Verdict.PROMOTED), (V2, Verdict.ROLLED_BACK))
    work(trainer)
    assert state_digest(trainer.policy.state()) == champion
    assert trainer.progress.accepted == trainer.progress.versions[V1].at_update
    feed(trainer, bus, first=5000, version=V2)
    work(trainer)
    assert trainer.buffer.untrainable["rejected_version"] == 24
    assert trainer.progress.parent == V1


def test_a_refused_version_that_a_retry_promoted_is_the_line_again(trainer: Trainer, bus: MemoryBus) -> None:
    offered(trainer, bus, first=0, version=V1)
    head = state_digest(trainer.policy.state())
    say(bus, 1, tiny.BASE, (V1, Verdict.ROLLED_BACK))
    work(trainer)
    assert state_digest(trainer.policy.state()) == state_digest(trainer.start)
    for generation in (2, 3):  # told twice, it returns once
        say(bus, generation, V1, (V1, Verdict.ROLLED_BACK), (V1, Verdict.PROMOTED))
        work(trainer)
        assert state_digest(trainer.policy.state()) == head
        assert not trainer.progress.versions[V1].rejected
    feed(trainer, bus, first=5000, version=V1)
    work(trainer)
    assert trainer.progress.accepted == trainer.progress.versions[V1].at_update + 1


def test_an_offer_that_waits_for_mlflow_falls_with_its_ancestor(trainer: Trainer, bus: MemoryBus) -> None:
    offered(trainer, bus, first=0, version=V1)
    while not any(p.offer for p in trainer.progress.publications):
        feed(trainer, bus, first=1000 + 100 * trainer.progress.update)
        work(trainer)
    say(bus, 1, tiny.BASE, (V1, Verdict.ROLLED_BACK))
    work(trainer)
    assert trainer.progress.publications == []
    assert updates(bus)[-1].reasons == ("rejected: ancestor",)
    assert state_digest(trainer.policy.state()) == state_digest(trainer.start)


def test_a_superseded_line_goes_on(trainer: Trainer, bus: MemoryBus) -> None:
    offered(trainer, bus, first=0, version=V1)
    head = state_digest(trainer.policy.state())
    say(bus, 1, tiny.BASE, (V1, Verdict.SUPERSEDED))
    work(trainer)
    assert state_digest(trainer.policy.state()) == head


def test_mlflow_away_never_stops_training(trainer: Trainer, bus: MemoryBus) -> None:
    """The publisher's address answers nobody; its thread runs and retries while updates are made (case 54)."""
    trainer.parts.publisher.start()
    for batch in range(3):
        feed(trainer, bus, first=100 * batch)
        work(trainer)
    trainer.parts.publisher.stop(10)
    assert trainer.progress.update == 3
    assert len(trainer.progress.publications) == trainer.progress.accepted >= 2
    assert not any(update.version for update in updates(bus))


def test_a_bus_that_is_away_delays_messages_and_loses_none(
    tmp_path: Path, agent: AgentFile, bus: MemoryBus, lease: Lease
) -> None:
    def down_after_batch(name: str) -> None:
        bus.down = bus.down or name == "after checkpoint: batch"
        stop_when_idle(name)

    trainer = tiny.open_tiny(tmp_path, agent, bus, lease=lease, boundary=down_after_batch)
    feed(trainer, bus, first=0)
    work(trainer)
    assert bus.down and trainer.progress.update == 1
    assert updates(bus) == []
    bus.down = False
    work(trainer)
    assert len(updates(bus)) == 1
    assert len(bus.read(CREDITS)) == 24


def test_an_unreadable_experience_is_a_dead_letter_and_its_neighbours_are_trained(
    trainer: Trainer, bus: MemoryBus
) -> None:
    bus.append(EXPERIENCES, "ep_bad", b"{}")
    for number, ids in ((900, [tiny.VOCABULARY]), (901, [7] * 300)):
        alien = tiny.experience(number, [tiny.priced(ids, [7], [-1.0])], thumb=1)
        tiny.publish_experiences(bus, [alien])
    feed(trainer, bus, first=0)
    work(trainer)
    assert len(bus.read(DEAD_LETTERS)) == 3
    assert trainer.progress.update == 1


def test_a_correction_is_read_once_and_taught_as_a_pair(trainer: Trainer, bus: MemoryBus) -> None:
    trainer.parts = replace(trainer.parts, spell=lambda text: [12, tiny.END])
    items = tiny.dialogues(trainer.policy, 24)
    said = Correction(response_id=items[0].turns[1].response_id, text="yes", rater="rater-0")
    tiny.publish_experiences(bus, [items[0].model_copy(update={"corrections": (said,)}), *items[1:]])
    work(trainer)
    (child,) = [name for name in trainer.replay.features if CHILD in name]
    assert child.startswith(items[0].episode_id)
    (credit,) = [u for u in updates(bus) if u.version is None]
    assert credit.measures["reward_model/pairs"] == 1.0
    assert child not in credit.episode_ids
    assert "reward_model/length_correlation" in credit.measures


def test_engine_and_trainer_are_compared_where_the_head_sampled(trainer: Trainer, bus: MemoryBus) -> None:
    """Case 39: the first batch is the head's own, the second its predecessor's."""
    for batch in range(2):
        feed(trainer, bus, first=100 * batch)
        work(trainer)
    (first,) = (update.measures for update in updates(bus))
    second = trainer.progress.publications[-1].update.measures
    assert first["sampling/matching_tokens"] >= 24
    assert first["sampling/sampling_logp_difference/mean"] < 1e-4
    assert first["sampling/k3"] < 1e-8
    assert "sampling/k3" not in second
    assert first["critic_loss"] > 0
    assert trainer.progress.publications[0].metrics["loss/value_avg"] == first["critic_loss"]


def test_an_engine_that_says_other_log_probabilities_is_warned_of(
    trainer: Trainer, bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    items = tiny.dialogues(trainer.policy, 24)
    tiny.publish_experiences(bus, [_misquoted(item) for item in items])
    work(trainer)
    assert "from the engine's" in caplog.text


def _misquoted(item: Experience) -> Experience:
    """As an engine that states raw log-probabilities where it samples from others."""
    turns = [
        each.model_copy(
            update={
                "turn": each.turn.model_copy(update={"logprobs": tuple(v - 0.05 for v in each.turn.logprobs)})
            }
        )
        for each in item.turns
    ]
    return item.model_copy(update={"turns": tuple(turns)})


def test_the_probe_is_compared_with_the_one_beside_the_parent(trainer: Trainer, bus: MemoryBus) -> None:
    for batch in range(2):
        feed(trainer, bus, first=100 * batch)
        work(trainer)
    (first,) = (update.measures for update in updates(bus))
    second = trainer.progress.publications[-1].update.measures
    assert trainer.progress.accepted == 2
    assert "probe/change" not in first
    assert 0.0 < abs(second["probe/change"]) < 1.0


def test_six_refusals_pause_learning_and_time_re_arms_it(
    tmp_path: Path, tiny_model: Path, bus: MemoryBus, lease: Lease
) -> None:
    strict = tiny.agent_file(tiny_model, trust={"k3_old_refuse": 1e-12, "refusals_pause": 2})
    now = [2000]
    trainer = tiny.open_tiny(
        tmp_path, strict, bus, lease=lease, clock=lambda: now[0], boundary=stop_when_idle
    )
    for batch in range(4):
        feed(trainer, bus, first=100 * batch)
        work(trainer)
    assert trainer.progress.update == 2
    assert state_digest(trainer.policy.state()) == state_digest(trainer.start)
    now[0] += 1_800_000
    work(trainer)
    assert trainer.progress.update == 4
