"""What this machine lacks for the stack, each finding with what to do. `ratchet up` refuses on the same findings.

A check looks and reports; it changes nothing.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from deploy.stack.engine import EngineUnfit, check_model
from deploy.stack.kafka_node import jars_folder
from deploy.stack.machine import Machine
from deploy.stack.plan import Plan, StackSettings
from feedback.agent_file import AgentFile
from feedback.settings import listed

_MINIMUM_JAVA = 17
_COMFORTABLE_MEMORY_GIB = 8
_MINIMUM_DISK_GIB = 2
_GIB = 2**30


class Level(StrEnum):
    """`fault` stops `ratchet up`; `warning` does not."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    about: str
    level: Level
    said: str
    todo: str = ""


def examine(settings: StackSettings, agent: AgentFile, plan: Plan, machine: Machine) -> Iterator[Finding]:
    """Every finding, cheapest first."""
    yield check_number_format(settings, machine)
    yield check_threads(settings, machine)
    yield check_gpu()
    yield check_memory(settings, machine)
    yield check_disk(settings.home)
    if not settings.engines:
        yield check_agent_model(agent)
    if not settings.kafka:
        yield check_jars()
        yield check_java()
    yield from (check_named(name, address) for name, address in named_addresses(settings))
    for part in plan.parts:
        for port in part.ports:
            yield check_port(part.name, port)


def check_number_format(settings: StackSettings, machine: Machine) -> Finding:
    """Which number format the engine serves in, and why."""
    if settings.engine_dtype != "auto":
        chosen = settings.engine_dtype
        if chosen == "bfloat16" and not machine.has_bfloat16:
            todo = "unset DEPLOY_ENGINE_DTYPE: emulated bfloat16 is about a hundred times slower"
            return Finding(
                "number format", Level.WARNING, "bfloat16 is set, the CPU has no units for it", todo
            )
        return Finding("number format", Level.OK, f"{chosen}, as DEPLOY_ENGINE_DTYPE says")
    why = "has avx512_bf16 or amx_bf16" if machine.has_bfloat16 else "has neither avx512_bf16 nor amx_bf16"
    return Finding("number format", Level.OK, f"{machine.dtype}: the CPU {why}")


def check_threads(settings: StackSettings, machine: Machine) -> Finding:
    """How the cores are shared."""
    if machine.cores < 2:
        return Finding(
            "threads", Level.WARNING, "1 core: engine and trainer take turns", "use two or more cores"
        )
    engine = settings.engine_threads or max(1, machine.cores // 2)
    return Finding("threads", Level.OK, f"{machine.cores} cores, {engine} for the engine")


def check_gpu() -> Finding:
    """Whether there is a GPU; none is needed."""
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", Level.OK, "none; everything runs on the CPU")
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    names = done.stdout.strip().replace("\n", "; ")
    if done.returncode or not names:
        return Finding("GPU", Level.WARNING, "nvidia-smi finds none", "check the driver")
    return Finding("GPU", Level.OK, f"{names}; not used: every profile here runs on the CPU")


def check_memory(settings: StackSettings, machine: Machine) -> Finding:
    """Free memory against what the stack takes."""
    free = machine.memory_available / _GIB
    said = f"{free:.1f} GiB free of {machine.memory_total / _GIB:.0f}"
    if free < settings.memory_needed_gib:
        todo = f"free some: the stack needs {settings.memory_needed_gib:g} GiB (DEPLOY_MEMORY_NEEDED_GIB)"
        return Finding("memory", Level.FAULT, said, todo)
    if free < _COMFORTABLE_MEMORY_GIB:
        return Finding("memory", Level.WARNING, said, f"{_COMFORTABLE_MEMORY_GIB} GiB are comfortable")
    return Finding("memory", Level.OK, said)


def check_disk(home: Path) -> Finding:
    """Room for logs, messages, adapters and checkpoints."""
    existing = next(folder for folder in (home.absolute(), *home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free / _GIB
    level = Level.OK if free >= _MINIMUM_DISK_GIB else Level.FAULT
    todo = "" if level is Level.OK else f"free {_MINIMUM_DISK_GIB} GiB, or set RATCHET_HOME to another disk"
    return Finding("disk", level, f"{free:.1f} GiB free at {existing}", todo)


def check_agent_model(agent: AgentFile) -> Finding:
    """Whether the engine can load the agent's model."""
    try:
        check_model(agent.model.path)
    except EngineUnfit as error:
        return Finding(
            "model", Level.FAULT, str(error), "or make the desk model with `ratchet bootstrap grow`"
        )
    return Finding("model", Level.OK, f"{agent.agent}: {agent.model.path}")


def check_jars() -> Finding:
    """Whether set-up fetched Kafka."""
    count = len(list(jars_folder().glob("*.jar")))
    if not any(jars_folder().glob("kafka_*.jar")):
        return Finding("Kafka", Level.FAULT, f"its jars are not in {jars_folder()}", "run `make setup`")
    return Finding("Kafka", Level.OK, f"{count} jars in {jars_folder()}")


def check_java() -> Finding:
    """Whether a Java that runs Kafka is there."""
    todo = f"install Java {_MINIMUM_JAVA} or later (Debian: apt-get install default-jre-headless)"
    if shutil.which("java") is None:
        return Finding("Java", Level.FAULT, "missing", todo)
    said = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    major = java_major(said)
    if major is None or major < _MINIMUM_JAVA:
        return Finding("Java", Level.FAULT, f"version {major or 'unknown'} is too old", todo)
    return Finding("Java", Level.OK, f"version {major}")


def java_major(said: str) -> int | None:
    """17 from `openjdk version "17.0.15"`; 8 from `"1.8.0_402"`."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def named_addresses(settings: StackSettings) -> Iterator[tuple[str, str]]:
    """What the operator named instead of having it started: variable and address."""
    if settings.kafka:
        yield from (("RATCHET_KAFKA", each) for each in listed(settings.kafka))
    if settings.mlflow:
        yield "MLFLOW_TRACKING_URI", settings.mlflow
    if settings.engines:
        yield from (("SERVING_ENGINES", each) for each in listed(settings.engines))


def check_named(variable: str, address: str) -> Finding:
    """Whether somebody listens at a named address. Chat and recording wait for it, so this never stops `up`."""
    place = urlsplit(address if "://" in address else f"tcp://{address}")
    port = place.port or (443 if place.scheme == "https" else 80)
    try:
        socket.create_connection((place.hostname or "", port), timeout=2).close()
    except OSError as error:
        said = f"nobody answers at {address} ({error.strerror or error})"
        return Finding(variable, Level.WARNING, said, "start it, or unset the variable to have one started")
    return Finding(variable, Level.OK, f"{address} answers")


def check_port(part: str, port: int) -> Finding:
    """Whether a part's port is free, and who holds it if not."""
    if is_port_free(port):
        return Finding(f"port {port}", Level.OK, f"free for {part}")
    todo = f"stop it, or move {part} with {port_setting(part)}"
    return Finding(f"port {port}", Level.FAULT, f"{part}'s port is held by {port_holder(port)}", todo)


def port_setting(part: str) -> str:
    """The variable that moves a part's port."""
    ours = {
        "serving": "SERVING_PORT",
        "feedback": "FEEDBACK_METRICS_PORT",
        "trainer": "TRAINER_PORT",
        "deploy": "DEPLOY_PORT",
    }
    return ours.get(part, f"DEPLOY_{part.upper()}_PORT")


def is_port_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def port_holder(port: int) -> str:
    """Name, pid and command of the process that listens on a port, as far as we may see."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                command = " ".join(process.cmdline())
            except psutil.Error:
                break
            return f"{process.name()} (pid {process.pid}: {command[:80]})"
    return "another user's process"
