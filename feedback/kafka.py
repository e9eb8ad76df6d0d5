"""The bus on Apache Kafka; with its reader the only file that knows kafka-python. Same promises as `feedback.bus` states.

Every send is acknowledged by all replicas or reported; nothing about it is assumed.
"""

import contextlib
import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource
from kafka.errors import KafkaError, TopicAlreadyExistsError

from feedback.bus import COMPACTED, BusError, TopicMismatch, check_size
from feedback.kafka_reader import BLOCK_MS, DISCOVER_S, KafkaReader
from feedback.schemas import TOPICS

_log = logging.getLogger(__name__)
logging.getLogger("kafka").setLevel(
    logging.CRITICAL
)  # it logs every reconnect as an error; failures reach us anyway

_CONNECT_MS = 5_000
_DELIVERY_MS = 30_000


class KafkaBus:
    """Connects when it is first used, and again after every failure; the broker may be absent when it is built."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._lock = threading.Lock()
        self._producer: Any = None
        self._pending: defaultdict[int, list[Any]] = defaultdict(list)

    def send(self, topic: str, key: str, value: bytes, *, timestamp_ms: int | None = None) -> None:
        """Buffer one record; waits at most 10 s for a broker. Where it fails, what this thread had buffered is given up."""
        check_size(topic, value)
        try:
            future = self._buffer(topic, key.encode(), value, timestamp_ms)
        except BusError:
            self._pending.pop(threading.get_ident(), None)
            raise
        self._pending[threading.get_ident()].append(future)

    def flush(self, timeout_s: float) -> None:
        """Return once every record this thread sent is acknowledged by all replicas."""
        futures = self._pending.pop(threading.get_ident(), [])
        producer = self._producer
        if not futures:
            return
        if producer is None:
            raise _not_acknowledged(futures, "the connection was lost")
        try:
            producer.flush(timeout=timeout_s)
        except KafkaError as error:
            self._reset(producer)
            raise _not_acknowledged(futures, str(error)) from error
        failed = [future for future in futures if not future.succeeded()]
        if failed:
            self._reset(producer)
            raise _not_acknowledged(failed, str(failed[0].exception))

    def ensure_topics(self, partitions: int) -> None:
        """Create what is missing; refuse what exists with another partition count or clean-up policy."""
        self._probe()
        try:
            admin = KafkaAdminClient(**self._client_options(), request_timeout_ms=BLOCK_MS)
        except KafkaError as error:
            raise BusError(f"no Kafka at {self._bootstrap}: {error}") from error
        try:
            _create_missing(admin, partitions)
            _check_topics(admin, partitions)
        except KafkaError as error:
            raise BusError(f"topics could not be made ready at {self._bootstrap}: {error}") from error
        finally:
            admin.close()

    def reader(self, topics: Sequence[str]) -> "KafkaReader":
        """A reader at the earliest records; it connects at the first poll."""
        return KafkaReader(self._open_consumer, self._probe, topics)

    def close(self) -> None:
        """Give what is buffered a second, then let go."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError):
                producer.flush(timeout=1)
            _abandon(producer)

    def _buffer(self, topic: str, key: bytes, value: bytes, timestamp_ms: int | None) -> Any:
        producer = self._connected()
        try:
            return producer.send(topic, value=value, key=key, timestamp_ms=timestamp_ms)
        except KafkaError as error:
            self._reset(producer)
            raise BusError(f"{topic}: not sent: {error}") from error

    def _connected(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._probe()
                try:
                    self._producer = KafkaProducer(
                        **self._client_options(),
                        metrics_enabled=False,
                        acks="all",
                        enable_idempotence=True,
                        linger_ms=2,
                        batch_size=131_072,
                        max_block_ms=BLOCK_MS,
                        request_timeout_ms=BLOCK_MS,
                        delivery_timeout_ms=_DELIVERY_MS,
                        allow_auto_create_topics=False,
                    )
                except KafkaError as error:
                    raise BusError(f"no Kafka at {self._bootstrap}: {error}") from error
            return self._producer

    def _reset(self, producer: Any) -> None:
        """Drop a producer in doubt: its unsent records would otherwise arrive behind what is sent again."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        _abandon(producer)

    def _open_consumer(self) -> Any:
        return KafkaConsumer(
            **self._client_options(),
            metrics_enabled=False,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=BLOCK_MS,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=4 * 1024 * 1024,
            metadata_max_age_ms=int(DISCOVER_S * 1000),
            allow_auto_create_topics=False,
        )

    def _client_options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._bootstrap.split(","),
            "client_id": self._client_id,
            "bootstrap_timeout_ms": _CONNECT_MS,
            "reconnect_backoff_max_ms": 1_000,
        }

    def _probe(self) -> None:
        """A client that cannot bootstrap leaves threads behind, so look for a listener first."""
        for address in self._bootstrap.split(","):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=_CONNECT_MS / 1000).close()
                return
            except OSError:
                continue
        raise BusError(f"no Kafka at {self._bootstrap}")


def _not_acknowledged(futures: Sequence[Any], reason: str) -> BusError:
    count = sum(not future.succeeded() for future in futures)
    return BusError(f"{count} records not acknowledged: {reason}")


def _abandon(producer: Any) -> None:
    """Fail what is still buffered. `close` alone raises on unsent records and leaves its thread sending them."""
    producer._sender.force_close()
    producer._sender.join(timeout=BLOCK_MS / 1000)
    with contextlib.suppress(KafkaError):
        producer.close(timeout=0)


def _create_missing(admin: Any, partitions: int) -> None:
    missing = sorted(set(TOPICS) - set(admin.list_topics()))
    for topic in missing:
        policy = "compact" if topic in COMPACTED else "delete"
        options = {"num_partitions": partitions, "configs": {"cleanup.policy": policy}}
        try:
            admin.create_topics({topic: options})
        except TopicAlreadyExistsError:
            _log.info("topic %s was made by another process", topic)
    admin.wait_for_topics(missing)


def _check_topics(admin: Any, partitions: int) -> None:
    described = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(list(TOPICS))}
    resources = [ConfigResource("TOPIC", topic, ["cleanup.policy"]) for topic in TOPICS]
    policies = admin.describe_configs(resources, config_filter="all")["topic"]
    for topic in TOPICS:
        if described[topic] != partitions:
            raise TopicMismatch(
                f"topic {topic} has {described[topic]} partitions and {partitions} are set: "
                "all topics need one partition count (set it to what exists, or start with new topics)"
            )
        policy = policies[topic]["cleanup.policy"]["value"]
        if ("compact" in policy) != (topic in COMPACTED):
            wanted = "compact" if topic in COMPACTED else "delete"
            raise TopicMismatch(f"topic {topic} has cleanup.policy={policy}, it must be {wanted}")
