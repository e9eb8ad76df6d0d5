"""What this machine has, and what follows for number formats and threads. Reads; decides nothing about the stack."""

import os
from dataclasses import dataclass
from typing import Literal

import psutil

from online_trainer.cpu import cpu_flags, has_bfloat16

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
        return has_bfloat16(self.cpu_flags)

    @property
    def dtype(self) -> Dtype:
        """The number format the engine serves in."""
        return "bfloat16" if self.has_bfloat16 else "float32"


def look() -> Machine:
    """Read the facts now."""
    memory = psutil.virtual_memory()
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu_flags=cpu_flags(),
        memory_available=memory.available,
        memory_total=memory.total,
    )
