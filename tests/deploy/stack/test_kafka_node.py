"""The embedded broker: formatted once, its data kept over a restart and a changed port."""

import socket
import sys
from pathlib import Path

import pytest

from deploy.stack.kafka_node import KafkaNodeError, is_answering, prepare_node
from tests.running import free_ports, running


def cluster_of(folder: Path) -> str:
    return (folder / "data" / "meta.properties").read_text().split("cluster.id=")[1].splitlines()[0]


def test_a_folder_keeps_its_cluster_and_a_new_port_only_rewrites_the_properties(tmp_path: Path) -> None:
    first, second, third, fourth = free_ports(4)
    prepare_node(tmp_path, port=first, controller_port=second)
    cluster = cluster_of(tmp_path)

    node = prepare_node(tmp_path, port=third, controller_port=fourth)

    assert cluster_of(tmp_path) == cluster
    assert f"PLAINTEXT://127.0.0.1:{third}" in (tmp_path / "server.properties").read_text()
    with running(node.command, lambda: is_answering(node.bootstrap), log=tmp_path / "log"):
        assert is_answering(f"127.0.0.1:{third}")


def test_an_open_port_that_is_no_broker_does_not_count() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()

        assert not is_answering(f"127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.2)
    assert not is_answering("127.0.0.1:1", timeout_s=0.2)


def test_missing_jars_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    with pytest.raises(KafkaNodeError, match="make setup"):
        prepare_node(tmp_path, port=1, controller_port=2)
