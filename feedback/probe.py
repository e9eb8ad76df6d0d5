"""The probe that travels with an adapter: fixed ids with the trainer's log-probabilities, for an engine to be held against.

An engine in bfloat16 is a tenth of a nat from a trainer in float32 on ids that mean little (measured on the desk model's
probe; 1e-5 in float32). So its own distance on the base model is the yardstick for its distance on the adapter.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from feedback.manifest import PROBE

Rows = Sequence[Sequence[float]]
"""Log-probabilities at T = 1, a row for each prompt, from its second id on."""

AGREES = 0.02
"""Mean |difference| in nats that is still the same model in one number format."""
ROUNDS = 0.15
"""Mean |difference| in nats on the base model that an engine's number format may make."""
_EFFECT = (0.5, 1.5)


class Probe(BaseModel):
    """Prompts in ids, and what the trainer measured on them under the adapter and under the base model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[FiniteFloat, ...], ...]
    base_logprobs: tuple[tuple[FiniteFloat, ...], ...]

    @model_validator(mode="after")
    def _fits(self) -> "Probe":
        sizes = [len(prompt) - 1 for prompt in self.prompts]
        if not sizes or min(sizes) < 1:
            raise ValueError("prompts: give at least one, of at least two ids")
        if any([len(row) for row in rows] != sizes for rows in (self.logprobs, self.base_logprobs)):
            raise ValueError("logprobs: give one for each id after the first")
        return self

    def write(self, folder: Path) -> None:
        """Beside the adapter's weights."""
        (folder / PROBE).write_text(self.model_dump_json())


def read_probe(folder: Path) -> Probe:
    """The probe of an adapter folder. ValueError when there is none or it cannot be used."""
    try:
        return Probe.model_validate_json((folder / PROBE).read_bytes())
    except OSError as error:
        raise ValueError(f"no readable {PROBE}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{PROBE}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def distance(ours: Rows, theirs: Rows) -> float:
    """Mean |difference|, nats."""
    return fmean(abs(a - b) for a, b in _pairs(ours, theirs))


def disagreement(probe: Probe, *, found: Rows, base: Rows) -> str | None:
    """Why an engine that says this of the adapter and of its base does not run what the trainer made; None if it does.

    The adapter's effect on the engine is regressed on its effect in the trainer: 1 when it works, 0 when it is inert.
    """
    rounding = distance(base, probe.base_logprobs)
    if not rounding <= ROUNDS:
        return f"the engine's base model is {rounding:.4f} from the trainer's"
    effect = [a - b for a, b in _pairs(found, base)]
    meant = [a - b for a, b in _pairs(probe.logprobs, probe.base_logprobs)]
    size = sum(value * value for value in meant)
    if size == 0.0:
        return "the adapter has no effect in the trainer"
    share = sum(a * b for a, b in zip(effect, meant, strict=True)) / size
    if not share >= _EFFECT[0]:
        return f"the adapter has no effect on this engine: {share:.2f} of what the trainer measured"
    apart = distance(found, probe.logprobs)
    if not (share <= _EFFECT[1] and apart <= AGREES + 2 * rounding):
        return f"log-probabilities are {apart:.4f} from the trainer's"
    return None


def _pairs(ours: Rows, theirs: Rows) -> Iterator[tuple[float, float]]:
    for our_row, their_row in zip(ours, theirs, strict=True):
        yield from zip(our_row, their_row, strict=True)
