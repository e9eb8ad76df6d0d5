"""The publish gate: whether an adapter folder is what serving can load and what the trainer meant to make.

Invariant: a bad adapter gives reasons, never an exception; only a folder without a reason may become a version. That
its log-probs agree with the trainer's is the caller's check.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from feedback.manifest import CONFIG, WEIGHTS, ManifestError, verify
from feedback.training_section import LoraSettings

PREFIX = "base_model.model."
NORM_JUMP = 4.0
NORM_FLOOR = 1e-3

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Expected:
    """What an adapter of this base model and these settings must hold."""

    shapes: Shapes
    lora: LoraSettings


def expected_adapter(model_dir: Path, lora: LoraSettings) -> Expected:
    """Read the base model's weight names and shapes (not the weights) and derive the adapter's.

    Raises ValueError when a target names no linear weight of the model.
    """
    shapes: Shapes = {}
    found: set[str] = set()
    for name, shape in _base_shapes(model_dir).items():
        module, _, leaf = name.rpartition(".")
        target = module.rpartition(".")[2]
        if leaf != "weight" or target not in lora.targets or len(shape) != 2:
            continue
        found.add(target)
        shapes[f"{PREFIX}{module}.lora_A.weight"] = (lora.r, shape[1])
        shapes[f"{PREFIX}{module}.lora_B.weight"] = (shape[0], lora.r)
    if missing := set(lora.targets) - found:
        raise ValueError(f"the base model has no linear weight named {sorted(missing)}")
    return Expected(shapes, lora)


def _base_shapes(model_dir: Path) -> Shapes:
    shapes: Shapes = {}
    for shard in sorted(model_dir.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as weights:
            shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    return shapes


def inspect_adapter(
    folder: Path, expected: Expected, *, parent: Path | None = None, declared_zero: bool = False
) -> tuple[str, ...]:
    """Reasons against publishing or loading this folder; empty means it may pass.

    `parent` is the adapter it was trained from: a norm more than `NORM_JUMP` times its own is refused.
    `declared_zero` allows an adapter that changes nothing (the declared start).
    """
    try:
        verify(folder)
        tensors = _read(folder / WEIGHTS)
        config = json.loads((folder / CONFIG).read_text())
    except (ManifestError, SafetensorError, OSError, ValueError) as error:
        return (f"unreadable: {error}",)
    reasons = [*_config_faults(config, expected.lora), *_shape_faults(tensors, expected.shapes)]
    reasons += [f"non_finite: {name}" for name in tensors if not bool(torch.isfinite(tensors[name]).all())]
    if reasons:
        return tuple(reasons)
    norm = update_norm(tensors, expected.lora)
    if norm == 0.0 and not declared_zero:
        return ("inert: it changes no weight",)
    if parent is not None and norm > (bound := _norm_bound(parent, expected)):
        return (f"norm_jump: {norm:.4g} > {bound:.4g}",)
    return ()


def _norm_bound(parent: Path, expected: Expected) -> float:
    """`NORM_JUMP` times the parent's norm; no bound when the parent is a zero start or cannot be read."""
    try:
        norm = update_norm(_read(parent / WEIGHTS), expected.lora)
    except (SafetensorError, OSError, KeyError):
        return math.inf
    return NORM_JUMP * norm if norm > NORM_FLOOR else math.inf


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as weights:
        return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118


def _config_faults(config: Any, lora: LoraSettings) -> list[str]:
    """The adapter config against the agent file. dropout and bias are what vLLM can serve."""
    if not isinstance(config, dict):
        return [f"{CONFIG}: not a mapping"]
    wanted = {"peft_type": "LORA", "r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": 0, "bias": "none"}
    faults = [
        f"{CONFIG}: {key} is {config.get(key)!r}, expected {value!r}"
        for key, value in wanted.items()
        if config.get(key) != value
    ]
    targets = config.get("target_modules")
    if not isinstance(targets, list) or set(targets) != set(lora.targets):
        faults.append(f"{CONFIG}: target_modules are not {sorted(lora.targets)}")
    faults += [f"{CONFIG}: {key} is not served" for key in ("use_dora", "modules_to_save") if config.get(key)]
    return faults


def _shape_faults(tensors: Mapping[str, Tensor], shapes: Shapes) -> list[str]:
    faults = [f"missing tensor {name}" for name in sorted(shapes.keys() - tensors.keys())]
    faults += [f"unknown tensor {name}" for name in sorted(tensors.keys() - shapes.keys())]
    faults += [
        f"shape of {name} is {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    return faults


def update_norm(tensors: Mapping[str, Tensor], lora: LoraSettings) -> float:
    """Frobenius norm of alpha/r B A over all modules, from the r x r Gram matrices: |BA|^2 = tr(B'B A A')."""
    square = 0.0
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            a64, b64 = a.double(), tensors[name.replace("lora_A", "lora_B")].double()
            square += float(((b64.T @ b64) * (a64 @ a64.T)).sum())
    return lora.alpha / lora.r * math.sqrt(max(0.0, square))
