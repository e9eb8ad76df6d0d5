"""Fixtures of this package's tests."""

import gc
from collections.abc import Iterator

import pytest

from feedback.kafka import wait_for_broker
from tests.feedback.broker import PARTITIONS, Broker, free_port


@pytest.fixture(scope="package")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    from deploy.stack.kafka_node import prepare_node

    folder = tmp_path_factory.mktemp("kafka")
    node = prepare_node(folder, port=free_port(), controller_port=free_port())
    broker = Broker(node.command, node.bootstrap, folder / "broker.log")
    broker.start()
    wait_for_broker(broker.bus(), partitions=PARTITIONS, timeout_s=60)
    yield broker
    broker.stop()
    gc.collect()
