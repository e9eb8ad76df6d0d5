"""Wires the trainer by hand, checks itself, and runs it until told to stop.

Invariant: nothing is trained before the self-checks passed and the lease is held.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import torch

from feedback.agent_file import AgentFile, AgentFileError, load_agent_file
from feedback.kafka import KafkaBus
from online_trainer.checkpoint import Checkpoints, Lease, LeaseLost
from online_trainer.config import Settings
from online_trainer.corrections import speller
from online_trainer.gate import expected_adapter
from online_trainer.monitor import Monitor
from online_trainer.policy import Policy, PolicyError, load_base
from online_trainer.probe import probe_prompts
from online_trainer.publish import Publisher, measure_probe
from online_trainer.registry import Registry
from online_trainer.state import Progress
from online_trainer.trainer import Parts, StartError, Trainer, open_trainer
from online_trainer.worker import run

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


def serve(settings: Settings, stopping: threading.Event, *, clock: Callable[[], int]) -> None:
    """Run until `stopping`; raises StartError."""
    try:
        agent = load_agent_file(settings.agent_file)
        lease = Lease(settings.folder)
    except (AgentFileError, LeaseLost) as error:
        raise StartError(str(error)) from error
    with lease:
        trainer = _build(settings, agent, lease, clock)
        trainer.parts.publisher.start()
        if settings.port:
            trainer.parts.monitor.serve(settings.host, settings.port)
        log.info("ready: update %d, champion %s", trainer.progress.update, trainer.progress.champion)
        try:
            run(trainer, stopping, poll_s=settings.poll_s)
        finally:
            trainer.parts.publisher.stop(5.0)
            trainer.reader.close()
            trainer.parts.bus.close()
    log.info("stopped")


def _build(settings: Settings, agent: AgentFile, lease: Lease, clock: Callable[[], int]) -> Trainer:
    threads = settings.threads or max(1, (os.cpu_count() or 1) - 1)
    torch.set_num_threads(threads)
    dtype = DTYPES[settings.dtype]
    checkpoints = Checkpoints(settings.folder / "checkpoints", keep=settings.keep_checkpoints, lease=lease)
    try:
        policy = Policy(load_base(agent.model.path, dtype=dtype), agent.training.lora, seed=settings.seed)
        policy.check()
        expected = expected_adapter(agent.model.path, agent.training.lora)
    except (PolicyError, OSError, ValueError) as error:
        raise StartError(f"model {agent.model.path}: {error}") from error
    probe = probe_prompts(agent)
    measure_probe(policy, probe).write(
        settings.folder
    )  # what `ratchet up` holds each engine's base model against
    registry = Registry(settings.mlflow, agent.agent, timeout_s=settings.publish_timeout_s)
    adapters = settings.folder / "adapters"
    publisher = Publisher(registry, adapters, agent=agent.agent, retry_s=settings.publish_retry_s)
    parts = Parts(
        agent=agent,
        bus=KafkaBus(settings.kafka, "online-trainer"),
        checkpoints=checkpoints,
        publisher=publisher,
        monitor=Monitor(),
        expected=expected,
        adapters=adapters,
        probe=probe,
        spell=speller(agent),
        clock=clock,
    )
    fresh = Progress.fresh(agent, seed=settings.seed, threads=threads, dtype=str(dtype))
    trainer = open_trainer(parts, policy, fresh=fresh, reference=None)
    _warn_of_change(trainer.progress, threads=threads, dtype=str(dtype))
    return trainer


def _warn_of_change(progress: Progress, *, threads: int, dtype: str) -> None:
    """A resumed line made with other threads or precision goes on, but not to the same bits."""
    if (progress.threads, progress.dtype) != (threads, dtype):
        log.warning(
            "the checkpoint was made with %d threads and %s, now %d and %s",
            progress.threads,
            progress.dtype,
            threads,
            dtype,
        )
        progress.threads, progress.dtype = threads, dtype
