"""Prometheus metrics of the trainer: the few values that someone may want an alarm on.

Invariant: no user, episode or content in a label; versions are labels only while they are the champion.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from feedback.bus import Partition
from feedback.schemas import Decision
from online_trainer.update.parity import MEAN


class Monitor:
    """One registry per trainer, so that two in one process (tests) do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.updates = self._counter("ratchet_train_updates", "Updates made", ["decision"])
        self.episodes = self._counter("ratchet_train_episodes", "Episodes given to the policy", [])
        self.untrainable = self._gauge(
            "ratchet_train_untrainable_episodes", "Episodes never trained, by reason", ["reason"]
        )
        self.waiting = self._gauge("ratchet_train_waiting_episodes", "Episodes not yet taken", [])
        self.kl_old = self._gauge("ratchet_train_kl_old", "KL(old || new) of the last update, nats/token", [])
        self.kl_reference = self._gauge("ratchet_train_kl_reference", "KL to the reference, nats/token", [])
        self.rate = self._gauge("ratchet_train_learning_rate", "Learning rate in force", [])
        self.clip = self._gauge("ratchet_train_clip_fraction_ratio", "Share of clipped tokens", [])
        self.accepted = self._gauge("ratchet_train_head_updates", "Accepted updates on the head's line", [])
        self.last = self._gauge(
            "ratchet_train_last_step_timestamp_seconds", "When the last update was finished", []
        )
        self.parity = self._gauge(
            "ratchet_train_logp_difference_nats",
            "Mean |log pi - log mu| a token on turns that the head's own weights sampled, when last there were any",
            [],
        )
        self.paused = self._gauge("ratchet_train_paused", "1 while learning rests after refusals", [])
        self.publications = self._gauge(
            "ratchet_train_publications_waiting", "Accepted updates that MLflow does not have yet", []
        )
        self.lag = self._gauge("ratchet_train_consumer_lag_messages", "Messages not yet read", ["topic"])

    def serve(self, host: str, port: int) -> None:
        """Answer /metrics (and any other path) until the process ends."""
        start_http_server(port, addr=host, registry=self.registry)

    def updated(self, decision: Decision, measures: Mapping[str, float], *, at_ms: int) -> None:
        """One more finished update."""
        self.updates.labels(decision=decision.value).inc()
        self.kl_old.set(measures.get("k3_old", 0.0))
        self.kl_reference.set(measures.get("kl_ref", 0.0))
        self.clip.set(measures.get("clip_fraction", 0.0))
        self.rate.set(measures.get("lr", 0.0))
        self.last.set(at_ms / 1000)
        if MEAN in measures:
            self.parity.set(measures[MEAN])

    def saw_lag(self, lag: Mapping[Partition, int]) -> None:
        """Lag by topic, over its partitions."""
        for topic in {topic for topic, _ in lag}:
            behind = sum(count for (name, _), count in lag.items() if name == topic)
            self.lag.labels(topic=topic).set(behind)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)
