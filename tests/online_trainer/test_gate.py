"""The publish gate, on adapters written to disk: cases 5 and 40, and I8's half that is a file."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from feedback.manifest import CONFIG, MANIFEST, WEIGHTS, seal
from feedback.training_section import LoraSettings
from online_trainer.gate import Expected, expected_adapter, inspect_adapter, update_norm

LORA = LoraSettings(r=2, alpha=4, targets=("q_proj", "o_proj"))
Weights = dict[str, Tensor]


@pytest.fixture
def base(tmp_path: Path) -> Expected:
    """What an adapter of a two-layer model must hold."""
    model = tmp_path / "model"
    model.mkdir()
    weights = {
        f"model.layers.{layer}.self_attn.{name}.weight": torch.zeros(shape)
        for layer in (0, 1)
        for name, shape in (("q_proj", (6, 4)), ("k_proj", (3, 4)), ("o_proj", (4, 6)))
    }
    save_file(weights | {"model.norm.weight": torch.zeros(4)}, model / "model.safetensors")
    return expected_adapter(model, LORA)


def good_weights(expected: Expected) -> Weights:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in expected.shapes.items()}


def config() -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["o_proj", "q_proj"],
        "base_model_name_or_path": "desk",
    }


def adapter(folder: Path, weights: Weights, settings: dict[str, object] | None = None) -> Path:
    folder.mkdir()
    save_file(weights, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(settings if settings is not None else config()))
    seal(folder)
    return folder


def test_a_good_adapter_passes(base: Expected, tmp_path: Path) -> None:
    assert len(base.shapes) == 8
    assert base.shapes["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"] == (6, 2)
    assert inspect_adapter(adapter(tmp_path / "good", good_weights(base)), base) == ()


def zero_b(weights: Weights) -> Weights:
    return {n: torch.zeros_like(w) if "lora_B" in n else w for n, w in weights.items()}


def spoilt(weights: Weights, value: float) -> Weights:
    name = sorted(weights)[0]
    bad = weights[name].clone()
    bad[0, 0] = value
    return weights | {name: bad}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda w: {n.removeprefix("base_model.model."): t for n, t in w.items()}, "missing tensor"),
        (lambda w: {f"value_head.{n}": t for n, t in w.items()}, "unknown tensor value_head."),
        (lambda w: {n.replace("o_proj", "k_proj"): t for n, t in w.items()}, "unknown tensor"),
        (lambda w: dict(list(w.items())[1:]), "missing tensor"),
        (lambda w: {n: torch.cat([t, t]) if "q_proj.lora_A" in n else t for n, t in w.items()}, "shape of"),
        (zero_b, "inert"),
        (lambda w: {n: torch.zeros_like(t) for n, t in w.items()}, "inert"),
        (lambda w: {n: torch.full_like(t, math.nan) for n, t in w.items()}, "non_finite"),
        (lambda w: spoilt(w, math.nan), "non_finite"),
        (lambda w: spoilt(w, -math.inf), "non_finite"),
    ],
)
def test_cases_5_and_40_bad_weights_are_refused(
    base: Expected, tmp_path: Path, spoil: Callable[[Weights], Weights], reason: str
) -> None:
    reasons = inspect_adapter(adapter(tmp_path / "bad", spoil(good_weights(base))), base)
    assert any(reason in r for r in reasons)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", 4),
        ("lora_alpha", 8),
        ("lora_dropout", 0.1),
        ("bias", "all"),
        ("target_modules", ["q_proj"]),
        ("target_modules", None),
        ("peft_type", "IA3"),
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
    ],
)
def test_a_config_that_serving_would_read_otherwise_is_refused(
    base: Expected, tmp_path: Path, key: str, value: object
) -> None:
    folder = adapter(tmp_path / "bad", good_weights(base), config() | {key: value})
    assert any(key in reason for reason in inspect_adapter(folder, base))


def test_a_declared_zero_start_passes(base: Expected, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "zero", zero_b(good_weights(base)))
    assert inspect_adapter(folder, base, declared_zero=True) == ()


def test_a_jump_of_the_norm_is_refused(base: Expected, tmp_path: Path) -> None:
    parent = adapter(tmp_path / "parent", good_weights(base))
    grown = {n: t * (3.9 if "lora_B" in n else 1.0) for n, t in good_weights(base).items()}
    jumped = {n: t * (4.1 if "lora_B" in n else 1.0) for n, t in good_weights(base).items()}
    assert inspect_adapter(adapter(tmp_path / "grown", grown), base, parent=parent) == ()
    reasons = inspect_adapter(adapter(tmp_path / "jumped", jumped), base, parent=parent)
    assert reasons and reasons[0].startswith("norm_jump")
    start = adapter(tmp_path / "zero", zero_b(good_weights(base)))
    assert inspect_adapter(tmp_path / "jumped", base, parent=start) == ()


def test_the_norm_is_that_of_the_weight_it_adds(base: Expected) -> None:
    weights = good_weights(base)
    square = 0.0
    for name in weights:
        if "lora_A" in name:
            square += float((2.0 * weights[name.replace("lora_A", "lora_B")] @ weights[name]).square().sum())
    assert update_norm(weights, LORA) == pytest.approx(math.sqrt(square), rel=1e-5)


def test_a_folder_changed_after_sealing_or_half_written_is_refused(base: Expected, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "changed", good_weights(base))
    save_file(spoilt(good_weights(base), 1.0), folder / WEIGHTS)
    assert inspect_adapter(folder, base)[0].startswith("unreadable")
    half = adapter(tmp_path / "half", good_weights(base))
    (half / WEIGHTS).write_bytes((half / WEIGHTS).read_bytes()[:100])
    (half / MANIFEST).unlink()
    seal(half)
    assert inspect_adapter(half, base)[0].startswith("unreadable")
    assert inspect_adapter(tmp_path / "absent", base)[0].startswith("unreadable")


def test_i8_inspecting_changes_no_byte(base: Expected, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "bad", spoilt(good_weights(base), math.nan))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert inspect_adapter(folder, base)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_target_that_the_model_lacks_is_an_error_of_the_settings(base: Expected, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="w_proj"):
        expected_adapter(tmp_path / "model", LoraSettings(targets=("q_proj", "w_proj")))
