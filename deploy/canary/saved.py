"""A canary as JSON text and back, to the last bit, so that a killed controller goes on with the same evidence."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from deploy.canary.evidence import RatioCheck, RatioChecks, TwoArm
from deploy.canary.trial import Canary, Phase
from feedback.agent_file import Canary as Settings
from feedback.schemas import Verdict

_PROCESSES = ("worse", "better", "thumbs")
_CHECKS = ("assignment", "reaction")


def save(canary: Canary) -> str:
    """Floats keep every bit: JSON writes the shortest text that reads back equal."""
    fields = {name: value for name, value in vars(canary).items() if name != "settings"}
    for name in (*_PROCESSES, *_CHECKS):
        fields[name] = asdict(fields[name])
    fields["guardrails"] = {name: asdict(process) for name, process in canary.guardrails.items()}
    fields["settings"] = canary.settings.model_dump(mode="json")
    return json.dumps(fields, allow_nan=False)


def load(text: str) -> Canary:
    """The canary that `save` was given."""
    fields: dict[str, Any] = json.loads(text)
    for name in _PROCESSES:
        fields[name] = process(fields[name])
    for name in _CHECKS:
        fields[name] = checks(fields[name])
    fields["guardrails"] = {name: process(value) for name, value in fields["guardrails"].items()}
    fields["settings"] = Settings.model_validate(fields["settings"])
    fields["phase"] = Phase(fields["phase"])
    fields["verdict"] = None if fields["verdict"] is None else Verdict(fields["verdict"])
    return Canary(**fields)


def process(fields: Mapping[str, Any]) -> TwoArm:
    """One e-process."""
    return TwoArm(**fields)


def checks(fields: Mapping[str, Any]) -> RatioChecks:
    """One set of ratio checks."""
    return RatioChecks(tuple(RatioCheck(**stage) for stage in fields["stages"]), fields["peak"])
