"""Reads an adapter's weights without torch, by their bits, so that one that is not numbers or does nothing never reaches an engine."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from serving.engines.replica import Refused

_FLOATS = {  # dtype -> (unsigned words of its size, the exponent bits: all set means NaN or infinity)
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}


def check_weights(path: Path) -> None:
    """Raises Refused for weights that are unreadable or not finite, or where no pair of factors changes anything."""
    try:
        tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path.name} cannot be read") from error
    moving = {name for name, tensor in tensors if _is_nonzero(name, tensor["dtype"], tensor["data"])}
    if not any("lora_B" in name and name.replace("lora_B", "lora_A") in moving for name in moving):
        raise Refused("the adapter has no effect: in every pair one factor is zero")


def _is_nonzero(name: str, dtype: str, data: bytes) -> bool:
    if dtype not in _FLOATS:
        raise Refused(f"{name}: weights of type {dtype}")
    words_type, exponent = _FLOATS[dtype]
    words = np.frombuffer(data, words_type)
    if bool(((words & exponent) == exponent).any()):
        raise Refused(f"{name}: weights that are not finite")
    sign = 1 << (8 * words.itemsize - 1)
    return bool((words & (sign - 1)).any())
