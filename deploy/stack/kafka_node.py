"""The embedded Kafka: one KRaft broker from the jars that set-up fetched, all its state in one folder.

A folder is formatted once and keeps its cluster id for ever; a changed port only rewrites the properties.
"""

import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TEMPLATE = Path(__file__).parents[1] / "kafka" / "server.properties"
_API_VERSIONS, _CORRELATION = 18, 7
_START_S = 60.0


class KafkaNodeError(RuntimeError):
    """The embedded broker cannot be prepared; the text says what to do."""


@dataclass(frozen=True)
class KafkaNode:
    """A prepared broker: start it with `command`, stop it with SIGTERM."""

    command: tuple[str, ...]
    bootstrap: str


def jars_folder() -> Path:
    """Where set-up puts the jars: inside the environment that runs us."""
    return Path(sys.prefix) / "kafka"


def prepare_node(folder: Path, *, port: int, controller_port: int, host: str = "127.0.0.1") -> KafkaNode:
    """Write the properties and format the storage if it is new. Raises KafkaNodeError."""
    jars = jars_folder()
    if not any(jars.glob("kafka_*.jar")):
        raise KafkaNodeError(
            f"Kafka's jars are not in {jars}; run `make setup`, or name a cluster in RATCHET_KAFKA"
        )
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    properties = folder / "server.properties"
    properties.write_text(
        _TEMPLATE.read_text().format_map(
            {"host": host, "port": port, "controller_port": controller_port, "data": data.absolute()}
        )
    )
    if not (data / "meta.properties").exists():
        _format(folder, properties)
    return KafkaNode(
        command=(*_java(heap_mb=384), "kafka.Kafka", str(properties)), bootstrap=f"{host}:{port}"
    )


@contextmanager
def own_node(folder: Path) -> Iterator[str]:
    """host:port of a broker that holds nothing yet, for as long as the block. Raises KafkaNodeError."""
    node = prepare_node(folder, port=_free_port(), controller_port=_free_port())
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(node.command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_S
        while not is_answering(node.bootstrap):
            if process.poll() is not None or time.monotonic() > deadline:
                raise KafkaNodeError(f"Kafka did not start; see {folder / 'log'}")
            time.sleep(0.2)
        yield node.bootstrap
    finally:
        process.terminate()
        process.wait(timeout=30)


def is_answering(bootstrap: str, *, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker replies to an ApiVersions request there (an open port alone is not a broker)."""
    host, _, port = bootstrap.rpartition(":")
    body = struct.pack(">hhih", _API_VERSIONS, 0, _CORRELATION, -1)
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            reply = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(reply) == 8 and int.from_bytes(reply[4:], "big") == _CORRELATION


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _format(folder: Path, properties: Path) -> None:
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    command = (*_java(heap_mb=128), "kafka.tools.StorageTool", "format", "--standalone")
    done = subprocess.run(
        # In one word: an id may begin with a dash.
        (*command, f"--cluster-id={cluster}", "-c", str(properties)),
        capture_output=True,
        text=True,
        cwd=folder,
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise KafkaNodeError(f"Kafka could not format {folder}: {' '.join(reason)}")


def _java(*, heap_mb: int) -> tuple[str, ...]:
    """The serial collector and a small heap: one node on a shared machine, a few messages a second."""
    return (
        "java",
        f"-Xmx{heap_mb}m",
        "-Xms64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "-cp",
        str(jars_folder() / "*"),
    )


def main(folder: str, port: str, controller_port: str) -> None:
    """`python -m deploy.stack.kafka_node FOLDER PORT CONTROLLER_PORT`: become the broker."""
    try:
        node = prepare_node(Path(folder), port=int(port), controller_port=int(controller_port))
    except KafkaNodeError as error:
        sys.exit(f"kafka: {error}")
    os.execvp(node.command[0], node.command)


if __name__ == "__main__":
    main(*sys.argv[1:])
