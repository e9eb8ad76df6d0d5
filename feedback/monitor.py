"""The worker's numbers for Prometheus. A registry of its own, so that two workers in one process do not meet."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from feedback.bus import Partition


class Monitor:
    """Names follow conventions.md 6.3; no user or episode is ever a label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("bus_records", "Records read.", "topic")
        self.dead_letters = self._counter("dead_letters", "Records nobody could read.", "topic")
        self.lost = self._counter("bus_lost_records", "Records that retention removed unread.", "topic")
        self.foreign = self._counter("bus_foreign_records", "Records of another agent.", "topic")
        self.episodes = self._counter("episodes_joined", "Episodes closed, by outcome.", "outcome")
        self.experiences = self._counter("experiences", "Experiences emitted, by why not trained.", "reason")
        self.lag = self._gauge("bus_consumer_lag_messages", "Records not yet read.", "topic", "group")
        self.outbox = self._gauge("outbox_depth_messages", "Records that wait for the bus.")
        self.unmatched = self._gauge("episodes_unmatched", "Episodes with feedback and no interaction yet.")
        self.agreement = self._gauge("implicit_agreement_ratio", "Words that agree with thumbs.")
        self.pairs = self._gauge("implicit_pairs", "Answers with both a thumb and words.")

    def serve(self, host: str, port: int) -> None:
        """`/metrics`; any answer there also means that the process lives."""
        start_http_server(port, addr=host, registry=self.registry)

    def saw_lag(self, lag: dict[Partition, int]) -> None:
        """Lag by topic, over its partitions."""
        for topic in {topic for topic, _ in lag}:
            behind = sum(count for (name, _), count in lag.items() if name == topic)
            self.lag.labels(topic=topic, group="feedback").set(behind)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ratchet_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"ratchet_{name}", text, labels, registry=self.registry)
