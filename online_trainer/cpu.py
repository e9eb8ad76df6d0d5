"""Which number formats the CPU multiplies in hardware. Importing this loads nothing.

bfloat16 without units for it is emulated and a hundred times slower (measured), so the flags decide, never a preference.
"""

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """The flags of the first processor; none where the file is missing."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def has_bfloat16(flags: frozenset[str]) -> bool:
    """Whether a CPU of these flags multiplies bfloat16."""
    return bool(flags & _BFLOAT16)
