"""Fixtures of this package's tests."""

import gc
from collections.abc import Iterator

import pytest

from tests.feedback.broker import Broker, free_port


@pytest.fixture(scope="package")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    from deploy.stack.kafka_node import prepare_node

    folder = tmp_path_factory.mktemp("kafka")
    node = prepare_node(folder, port=free_port(), controller_port=free_port())
    broker = Broker(node.command, node.bootstrap, folder / "broker.log")
    broker.start()
    broker.wait_until_ready()
    yield broker
    broker.stop()
    gc.collect()
