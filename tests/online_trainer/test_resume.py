"""A trainer killed at any boundary goes on to the same bits as one that never was (cases 45, 46)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from feedback.agent_file import AgentFile
from feedback.bus import MemoryBus
from feedback.schemas import CREDITS, UPDATES, Credit, Update
from online_trainer.checkpoint import Lease, LeaseLost
from online_trainer.critics.state import SIDE_FACTS
from online_trainer.critics.value import Critic
from online_trainer.policy import state_digest
from online_trainer.trainer import StartError, Trainer
from online_trainer.worker import run
from tests.online_trainer import tiny


class Killed(BaseException):
    """The process died here."""


def until(place: str, *, times: int = 1) -> Callable[[str], None]:
    """Die at the n-th arrival at a place; stop in the same way once nothing is left to do."""
    seen = 0

    def boundary(name: str) -> None:
        nonlocal seen
        if name == place:
            seen += 1
            if seen == times:
                raise Killed(place)
        if name == "idle":
            raise Killed("idle")

    return boundary


def live(home: Path, agent: AgentFile, bus: MemoryBus, boundary: Callable[[str], None]) -> Trainer:
    """Run until the boundary ends it; the lease is freed as the death of a process frees it."""
    with Lease(home) as lease:
        trainer = tiny.open_tiny(home, agent, bus, lease=lease, boundary=boundary)
        with pytest.raises(Killed):
            run(trainer, threading.Event(), poll_s=0)
    return trainer


def bus_with(agent: AgentFile, count: int = 48) -> MemoryBus:
    bus = MemoryBus()
    tiny.publish_experiences(bus, tiny.dialogues(tiny.new_policy(agent), count))
    return bus


def bits(trainer: Trainer) -> dict[str, str]:
    """Digests of everything that decides what comes next."""
    optimizer = {
        f"{index}.{name}": value
        for index, moments in trainer.optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }
    critic = dict(trainer.critic.heads.state_dict())
    return {
        "policy": state_digest(trainer.policy.state()),
        "optimizer": state_digest(optimizer),
        "critic": state_digest(critic),
        "features": state_digest(trainer.replay.tensors()),
        "rates": f"{trainer.progress.rate} {trainer.progress.beta} {trainer.progress.scale}",
        "counts": f"{trainer.progress.update} {trainer.progress.accepted} {trainer.buffer.taken}",
        "settled": str(sorted(trainer.buffer.settled)),
    }


def told(bus: MemoryBus) -> tuple[set[bytes], set[bytes]]:
    """Distinct updates and credits; sending one twice is allowed, sending another is not."""
    updates = {Update.from_bytes(record.value).to_bytes() for record in bus.read(UPDATES)}
    credits = {Credit.from_bytes(record.value).to_bytes() for record in bus.read(CREDITS)}
    return updates, credits


PLACES = (
    "before checkpoint: batch",
    "after checkpoint: batch",
    "after step",
    "after adapter",
    "before checkpoint: update",
    "after checkpoint: update",
    "after send",
)


@pytest.fixture(scope="module")
def unbroken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], MemoryBus]:
    agent = tiny.agent_file(tiny_model)
    bus = bus_with(agent)
    trainer = live(tmp_path_factory.mktemp("unbroken"), agent, bus, until("never"))
    assert trainer.progress.update == 2
    assert trainer.progress.accepted >= 1
    return bits(trainer), bus


@pytest.mark.parametrize("place", PLACES)
def test_killed_and_resumed_equals_never_killed(
    place: str, unbroken: tuple[dict[str, str], MemoryBus], agent: AgentFile, tmp_path: Path
) -> None:
    bus = bus_with(agent)
    live(tmp_path, agent, bus, until(place, times=2))
    trainer = live(tmp_path, agent, bus, until("never"))
    assert bits(trainer) == unbroken[0]
    assert told(bus) == told(unbroken[1])


def test_a_resumed_head_is_trainable_and_moves(agent: AgentFile, tmp_path: Path) -> None:
    bus = bus_with(agent, 24)
    first = live(tmp_path, agent, bus, until("never"))
    before = bits(first)
    trained = sum(parameter.numel() for parameter in first.policy.parameters)
    idle = live(tmp_path, agent, bus, until("never"))
    assert bits(idle) == before
    assert sum(p.numel() for p in idle.policy.parameters if p.requires_grad) == trained > 0
    tiny.publish_experiences(bus, tiny.dialogues(idle.policy, 24, first=100))
    moved = live(tmp_path, agent, bus, until("never"))
    assert bits(moved)["policy"] != before["policy"]
    assert bits(moved)["critic"] != before["critic"]


def test_only_one_trainer_runs_on_a_home(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        with pytest.raises(LeaseLost, match="another trainer"):
            Lease(tmp_path)
        lease.check()
    with Lease(tmp_path) as later:
        assert later.epoch == lease.epoch + 1


def test_a_trainer_whose_lease_was_taken_writes_nothing(agent: AgentFile, tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        trainer = tiny.open_tiny(tmp_path, agent, MemoryBus(), lease=lease)
        (tmp_path / "lease").write_text(str(lease.epoch + 1))
        with pytest.raises(LeaseLost, match="taken over"):
            trainer.save("update")
        assert trainer.parts.checkpoints.serials() == []


def test_another_agents_home_is_refused_by_name(agent: AgentFile, tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        tiny.open_tiny(tmp_path, agent, MemoryBus(), lease=lease).save("here")
        other = agent.model_copy(update={"agent": "other-desk"})
        with pytest.raises(StartError, match="'tiny-desk'"):
            tiny.open_tiny(tmp_path, other, MemoryBus(), lease=lease)


def test_a_critic_that_knew_other_facts_begins_anew(
    agent: AgentFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A home that an earlier release wrote is gone on with."""
    bus = bus_with(agent, 24)
    first = live(tmp_path, agent, bus, until("never"))
    with Lease(tmp_path) as lease:
        old = tiny.open_tiny(tmp_path, agent, bus, lease=lease)
        old.critic = Critic(old.policy.width, SIDE_FACTS - 2, settings=agent.training.critic, seed=0)
        old.save("here")
    tiny.publish_experiences(bus, tiny.dialogues(first.policy, 24, first=100))
    again = live(tmp_path, agent, bus, until("never"))
    assert "other facts" in caplog.text
    assert again.progress.update == first.progress.update + 1
    assert again.progress.critic_pretrained


def test_old_checkpoints_go_and_pinned_ones_stay(agent: AgentFile, tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        trainer = tiny.open_tiny(tmp_path, agent, MemoryBus(), lease=lease)
        trainer.progress.versions["tiny-desk-000001"] = trainer.progress.versions[tiny.BASE].model_copy(
            update={"serial": 1}
        )
        for _ in range(7):
            trainer.save("update")
        assert trainer.parts.checkpoints.serials() == [1, 3, 4, 5, 6, 7]


def test_a_checkpoint_that_was_not_finished_is_not_there(agent: AgentFile, tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        trainer = tiny.open_tiny(tmp_path, agent, MemoryBus(), lease=lease)
        trainer.save("update")
        half = tmp_path / "checkpoints" / ".00000002"
        half.mkdir()
        (half / "state.json").write_text("{")
    with Lease(tmp_path) as lease:
        again = tiny.open_tiny(tmp_path, agent, MemoryBus(), lease=lease)
        assert again.progress.serial == 1
        assert not half.exists()
        assert torch.equal(
            next(iter(again.policy.state().values())), next(iter(trainer.policy.state().values()))
        )
