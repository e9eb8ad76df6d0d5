"""Prometheus numbers of the canary, computed from the status when they are asked for. No episode or user is ever a label."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StatusCollector(Collector):
    """Turns `GET /v1/status` into metric families."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Every family, in this order."""
        status = self._read()
        canary = status["canary"]
        yield from _canary(status, canary)
        ended = CounterMetricFamily("ratchet_canaries", "Canaries by how they ended", labels=["outcome"])
        for outcome, count in status["verdicts"].items():
            ended.add_metric([outcome], count)
        yield ended
        waiting = GaugeMetricFamily("ratchet_canaries_pending", "Versions that wait to be tried")
        waiting.add_metric([], len(status["pending"]))
        yield waiting
        lag = GaugeMetricFamily(
            "ratchet_bus_consumer_lag_messages",
            "Records not yet read",
            labels=["topic", "partition", "group"],
        )
        for name, left in status["lag"].items():
            topic, _, partition = name.rpartition("-")
            lag.add_metric([topic, partition, "controller"], left)
        yield lag
        spooled = GaugeMetricFamily("ratchet_outbox_records", "Records that wait for Kafka", labels=["role"])
        spooled.add_metric(["deploy"], status["spooled"])
        yield spooled
        spent = GaugeMetricFamily("ratchet_canary_budget_spent_ratio", "Observed losses promoted so far")
        spent.add_metric([], status["budget"]["spent"])
        yield spent


def exposition(read: Callable[[], dict[str, Any]]) -> bytes:
    """The text format."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(read))
    return generate_latest(registry)


def _canary(status: dict[str, Any], canary: dict[str, Any] | None) -> Iterator[Metric]:
    share = GaugeMetricFamily("ratchet_canary_share_ratio", "Share of new episodes on the candidate")
    share.add_metric([], status["share"])
    yield share
    if canary is None or canary["evidence"] is None:
        return
    info = GaugeMetricFamily(
        "ratchet_canary_info",
        "The active canary",
        labels=["canary", "agent", "champion", "candidate", "phase"],
    )
    info.add_metric(
        [canary["id"], status["agent"], status["champion"], canary["version"], canary["phase"]], 1
    )
    yield info
    evidence = canary["evidence"]
    value = GaugeMetricFamily("ratchet_canary_log_evalue", "Natural log of E", labels=["side"])
    for side in ("worse", "better"):
        value.add_metric([side], evidence[side]["log10_e"] * math.log(10))
    yield value
    rated = GaugeMetricFamily("ratchet_canary_rated_units", "Units with an outcome", labels=["arm"])
    for arm, figures in evidence["arms"].items():
        rated.add_metric([arm], figures["n"])
    yield rated
    checks = GaugeMetricFamily("ratchet_canary_srm_pvalue", "Sample ratio checks", labels=["check"])
    checks.add_metric(["assignment"], evidence["assignment_srm"])
    checks.add_metric(["rated"], evidence["rated_srm"])
    yield checks
    age = GaugeMetricFamily("ratchet_canary_duration_seconds", "Since it was offered")
    age.add_metric([], (status["at"] - canary["created_at"]) / 1000)
    yield age
