"""The processor's flags decide the number format (platform.md: machines differ)."""

from pathlib import Path

import pytest

from online_trainer.cpu import cpu_flags, has_bfloat16


@pytest.mark.parametrize(
    ("flags", "has"), [("fpu avx2 fma", False), ("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True)]
)
def test_bfloat16_is_chosen_by_the_flags_of_the_first_processor(
    tmp_path: Path, flags: str, has: bool
) -> None:
    page = tmp_path / "cpuinfo"
    page.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n")

    assert cpu_flags(page) == set(flags.split())
    assert has_bfloat16(cpu_flags(page)) is has


def test_without_a_list_of_flags_there_are_no_units(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    assert cpu_flags(tmp_path / "none") == cpu_flags(tmp_path / "empty") == frozenset()
