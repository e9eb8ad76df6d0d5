"""Prometheus metrics of the gateway (conventions 6.3). Labels never hold users, episodes or content.

Each application has its own registry, so that two in one process do not meet.
"""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from serving.engines.adapters import Adapters

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Metrics:
    """Everything the gateway counts."""

    def __init__(self, agent: str) -> None:
        self.registry = CollectorRegistry()
        self.agent = agent
        by_version = ["agent", "adapter_version", "arm"]
        self.requests = self._counter("requests", "Chat requests by how they ended.", [*by_version, "code"])
        self.duration = self._histogram("request_duration_seconds", "From request to last byte.", by_version)
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From request to first token.", by_version
        )
        self.in_flight = self._gauge("requests_in_flight", "Chat requests running now.", ["adapter_version"])
        self.tool_calls = self._counter("tool_calls", "Server-side tool calls.", ["tool", "outcome"])
        self.turns_flawed = self._counter("turns_flawed", "Turns that are not exact, by reason.", ["reason"])
        self.recording_lost = self._counter("recording_lost", "Messages the full spool refused.", ["topic"])
        self.feedback = self._counter("feedback", "Feedback stored.", ["metric", "arm", "status", "source"])
        self.feedback_score = self._histogram(
            "feedback_score", "Score of ratings.", ["metric", "arm"], buckets=(0.0, 0.25, 0.5, 0.75, 1.0)
        )
        self.feedback_delay = self._histogram(
            "feedback_delay_seconds",
            "From reply to rating.",
            ["metric"],
            buckets=(1, 10, 60, 600, 3600, 86400),
        )
        self.refused = self._counter("refused", "Requests refused before they were read.", ["reason"])
        self.adapter_info = self._gauge("adapter_info", "1 for each version and state.", ["version", "state"])
        self.replicas_loaded = self._gauge("adapter_replicas_loaded", "Engines that route it.", ["version"])
        self.adapter_load = self._histogram("adapter_load_duration_seconds", "Fetch, load and probe.", [])
        self.engines_up = self._gauge("engines_up", "Engines that can be used.", [])
        self.split_generation = self._gauge("split_generation", "Generation of the split in force.", [])
        self.outbox_depth = self._gauge("outbox_depth_messages", "Messages that wait for the bus.", [])

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def watch(self, adapters: "Adapters") -> None:
        """Set the gauges of adapters anew: series of versions that are gone disappear."""
        self.adapter_info.clear()
        self.replicas_loaded.clear()
        for replica in adapters.replicas:
            for version in replica.routable:
                self.adapter_info.labels(version, "routable").set(1)
                self.replicas_loaded.labels(version).inc()
            for version in replica.refused:
                self.adapter_info.labels(version, "refused").set(1)
        while adapters.load_seconds:
            self.adapter_load.observe(adapters.load_seconds.pop()[1])
        self.engines_up.set(sum(replica.problem is None for replica in adapters.replicas))
        self.split_generation.set(adapters.split.generation if adapters.split else -1)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"ratchet_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(f"ratchet_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: list[str], buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        return Histogram(f"ratchet_{name}", text, labels, registry=self.registry, buckets=buckets)
