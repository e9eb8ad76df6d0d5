"""The doctor: each finding on a machine where it must be found and on one where it must not."""

import socket
from pathlib import Path

import pytest

from deploy.stack.doctor import (
    Level,
    check_agent_model,
    check_disk,
    check_memory,
    check_named,
    check_number_format,
    check_threads,
    java_major,
    named_addresses,
    port_setting,
)
from deploy.stack.machine import Machine, look
from deploy.stack.plan import StackSettings
from feedback.agent_file import AgentFile

GIB = 2**30
AMX = Machine(
    cores=2, cpu_flags=frozenset({"avx2", "amx_bf16"}), memory_available=20 * GIB, memory_total=24 * GIB
)
PLAIN = Machine(cores=1, cpu_flags=frozenset({"avx2"}), memory_available=7 * GIB, memory_total=24 * GIB)


def test_the_number_format_follows_the_flags() -> None:
    assert (AMX.dtype, PLAIN.dtype) == ("bfloat16", "float32")
    assert "has avx512_bf16 or amx_bf16" in check_number_format(StackSettings(), AMX).said
    assert "has neither" in check_number_format(StackSettings(), PLAIN).said


def test_emulated_bfloat16_is_warned_about() -> None:
    wished = StackSettings(engine_dtype="bfloat16")

    assert check_number_format(wished, PLAIN).level is Level.WARNING
    assert check_number_format(wished, AMX).level is Level.OK


@pytest.mark.parametrize(("needed", "level"), [(6.0, Level.WARNING), (7.5, Level.FAULT)])
def test_memory_below_need_stops_and_below_comfort_warns(needed: float, level: Level) -> None:
    assert check_memory(StackSettings(memory_needed_gib=needed), PLAIN).level is level
    assert check_memory(StackSettings(memory_needed_gib=needed), AMX).level is Level.OK


def test_one_core_is_warned_about() -> None:
    assert check_threads(StackSettings(), PLAIN).level is Level.WARNING
    assert check_threads(StackSettings(), AMX).said == "2 cores, 1 for the engine"


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_javas_version_is_read(said: str, major: int | None) -> None:
    assert java_major(said) == major


def test_a_missing_model_says_what_to_do(desk_agent: AgentFile, tmp_path: Path) -> None:
    elsewhere = desk_agent.model_copy(
        update={"model": desk_agent.model.model_copy(update={"path": tmp_path})}
    )

    finding = check_agent_model(elsewhere)

    assert finding.level is Level.FAULT
    assert "ratchet bootstrap grow" in finding.todo


def test_every_part_has_a_variable_that_moves_its_port() -> None:
    names = {info for info in StackSettings.model_fields if info.endswith("port")}

    assert port_setting("serving") == "SERVING_PORT"
    for part in ("kafka", "mlflow", "engine"):
        assert port_setting(part).removeprefix("DEPLOY_").lower() in names


def test_a_named_address_where_nobody_listens_is_warned_about() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        place = f"127.0.0.1:{server.getsockname()[1]}"

        assert check_named("RATCHET_KAFKA", place).level is Level.OK
        assert check_named("SERVING_ENGINES", f"http://{place}/v1").level is Level.OK
    assert check_named("RATCHET_KAFKA", place).level is Level.WARNING


def test_every_named_address_is_looked_at() -> None:
    named = StackSettings().model_copy(update={"kafka": "a:1, b:2", "mlflow": "", "engines": "http://c:3"})

    assert list(named_addresses(named)) == [
        ("RATCHET_KAFKA", "a:1"),
        ("RATCHET_KAFKA", "b:2"),
        ("SERVING_ENGINES", "http://c:3"),
    ]


def test_disk_is_measured_at_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert f"free at {tmp_path}" in check_disk(tmp_path / "not" / "yet").said


def test_this_machine_can_be_looked_at() -> None:
    machine = look()

    assert machine.cores >= 1
    assert 0 < machine.memory_available <= machine.memory_total
