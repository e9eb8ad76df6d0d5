"""What this machine has, and what follows for number formats and threads. Reads; decides nothing about the stack.

bfloat16 without units for it is emulated and a hundred times slower (measured), so the flags decide, never a preference.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Machine:
    """Facts about the host at one moment; memory in bytes."""

    cores: int
    cpu_flags: frozenset[str]
    memory_available: int
    memory_total: int

    @property
    def has_bfloat16(self) -> bool:
        """Whether the CPU multiplies bfloat16 in hardware."""
        return bool(self.cpu_flags & _BFLOAT16_FLAGS)

    @property
    def dtype(self) -> Dtype:
        """The number format the engine serves in."""
        return "bfloat16" if self.has_bfloat16 else "float32"


def look() -> Machine:
    """Read the facts now."""
    memory = psutil.virtual_memory()
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu_flags=read_cpu_flags(_CPUINFO.read_text() if _CPUINFO.exists() else ""),
        memory_available=memory.available,
        memory_total=memory.total,
    )


def read_cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The flags of the first processor in the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()
