"""Whether an engine runs what the trainer made: rounding is forgiven, another model or an inert adapter is not (cases 5, 40)."""

import random
from pathlib import Path

import pytest

from feedback.probe import Probe, disagreement, distance, read_probe

PROMPTS = tuple(tuple(range(start, start + 73)) for start in range(4))


def rows(value: float = -2.0) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(value for _ in prompt[1:]) for prompt in PROMPTS)


def noisy(of: tuple[tuple[float, ...], ...], spread: float, *, seed: int) -> list[list[float]]:
    draw = random.Random(seed)
    return [[value + draw.gauss(0.0, spread) for value in row] for row in of]


def trained(effect: float) -> Probe:
    moved = tuple(tuple(-2.0 + effect * (-1) ** at for at in range(72)) for _ in PROMPTS)
    return Probe(prompts=PROMPTS, logprobs=moved, base_logprobs=rows())


@pytest.mark.parametrize("spread", [0.0, 1e-5, 0.09])
@pytest.mark.parametrize("effect", [0.05, 1.0])
def test_an_engine_that_only_rounds_agrees(spread: float, effect: float) -> None:
    probe = trained(effect)
    found, base = noisy(probe.logprobs, spread, seed=1), noisy(probe.base_logprobs, spread, seed=2)
    assert disagreement(probe, found=found, base=base) is None


@pytest.mark.parametrize("spread", [0.0, 1e-5, 0.09])
@pytest.mark.parametrize("effect", [0.05, 1.0])
def test_an_adapter_without_effect_is_found_whatever_the_rounding(spread: float, effect: float) -> None:
    probe = trained(effect)
    found, base = noisy(probe.base_logprobs, spread, seed=1), noisy(probe.base_logprobs, spread, seed=2)
    assert "no effect on this engine" in (disagreement(probe, found=found, base=base) or "")


def test_an_engine_that_rounds_the_same_way_both_times_agrees() -> None:
    probe = trained(0.004)
    assert disagreement(probe, found=probe.logprobs, base=probe.base_logprobs) is None


def test_another_base_model_is_found() -> None:
    probe = trained(0.05)
    found = [[value - 0.3 for value in row] for row in probe.logprobs]
    base = [[value - 0.3 for value in row] for row in probe.base_logprobs]
    assert "base model is 0.3000" in (disagreement(probe, found=found, base=base) or "")


@pytest.mark.parametrize("times", [2.0, -1.0])
def test_another_adapter_is_found(times: float) -> None:
    probe = trained(0.05)
    found = [[-2.0 + times * (value + 2.0) for value in row] for row in probe.logprobs]
    assert disagreement(probe, found=found, base=probe.base_logprobs) is not None


def test_an_adapter_that_says_something_else_beside_its_effect_is_found() -> None:
    probe = trained(0.05)
    found = [[value - 0.03 for value in row] for row in probe.logprobs]
    assert "0.0300 from the trainer's" in (disagreement(probe, found=found, base=probe.base_logprobs) or "")


def test_nan_never_agrees() -> None:
    probe = trained(1.0)
    nan = [[float("nan")] * 72 for _ in PROMPTS]
    assert disagreement(probe, found=nan, base=probe.base_logprobs) is not None
    assert disagreement(probe, found=probe.logprobs, base=nan) is not None


def test_a_probe_comes_back_as_it_was_written(tmp_path: Path) -> None:
    probe = trained(0.1)
    probe.write(tmp_path)
    assert read_probe(tmp_path) == probe


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "no readable probe.json"),
        ('{"prompts": [], "logprobs": [], "base_logprobs": []}', "at least one"),
        ('{"prompts": [[1, 2]], "logprobs": [[-1, -1]], "base_logprobs": [[-1]]}', "one for each id"),
        ('{"prompts": [[1, 2]], "logprobs": [[NaN]], "base_logprobs": [[-1]]}', "logprobs.0.0"),
        ('{"prompts": [[1, 2]], "logprobs": [[-1]]}', "base_logprobs"),
    ],
)
def test_a_probe_that_proves_nothing_is_refused(tmp_path: Path, text: str | None, named: str) -> None:
    if text is not None:
        (tmp_path / "probe.json").write_text(text)
    with pytest.raises(ValueError, match=named):
        read_probe(tmp_path)


def test_distance_is_the_mean_over_all_ids() -> None:
    assert distance([[1.0], [0.0, 0.0]], [[0.0], [0.0, 0.5]]) == pytest.approx(0.5)
