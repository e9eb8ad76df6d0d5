"""What the join's rate is held against: a bare kafka-python loop that consumes records and produces each of them again.

It does nothing else: no state, no parsing, no positions; so nothing that reads and writes the same records can be faster.
"""

import time
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition


def bare_rate(
    bootstrap: str, topics: Sequence[str], into: str, *, partitions: int, records: int, within_s: float
) -> float:
    """Records a second, from the first poll until all are acknowledged. Raises TimeoutError."""
    servers = bootstrap.split(",")
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metrics_enabled=False,
    )
    producer = KafkaProducer(
        bootstrap_servers=servers, acks="all", linger_ms=2, batch_size=131_072, metrics_enabled=False
    )
    try:
        consumer.assign([TopicPartition(topic, number) for topic in topics for number in range(partitions)])
        began, done = time.monotonic(), 0
        while done < records:
            if time.monotonic() - began > within_s:
                raise TimeoutError(f"{done} of {records} records came in {within_s:.0f} s")
            for batch in consumer.poll(timeout_ms=200, max_records=500).values():
                for record in batch:
                    producer.send(into, key=record.key, value=record.value)
                done += len(batch)
        producer.flush(timeout=within_s)
        return done / (time.monotonic() - began)
    finally:
        consumer.close(autocommit=False)
        producer.close(timeout=5)
