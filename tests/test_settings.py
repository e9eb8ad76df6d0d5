"""`.env.example` lists every setting of every process, and nothing else."""

import os
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from deploy.env_example import MODULES, render, settings_classes, variables

ROOT = Path(__file__).parent.parent


def test_the_page_is_what_the_classes_say() -> None:
    assert (ROOT / ".env.example").read_text() == render(settings_classes(MODULES)), "run `make settings`"


def test_every_process_has_settings_under_its_own_prefix() -> None:
    prefixes = {settings.model_config.get("env_prefix") for settings in settings_classes(MODULES)}

    assert {"DEPLOY_", "SERVING_", "FEEDBACK_", "TRAINER_"} <= prefixes


def test_a_variable_means_the_same_kind_of_thing_everywhere() -> None:
    kinds: dict[str, set[str]] = {}
    for settings in settings_classes(MODULES):
        for name, info in variables(settings):
            kind = str(info.annotation).removesuffix(" | None")
            kinds.setdefault(name, set()).add("str" if kind == "<class 'str'>" else kind)

    assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}


@pytest.mark.parametrize("settings", settings_classes(MODULES), ids=lambda found: found.__module__)
def test_only_our_own_names_are_read(settings: type[BaseSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOME` once became the stack's home; every bare name of a field is somebody else's variable."""
    for name in os.environ:
        if name.startswith(("RATCHET_", "DEPLOY_", "SERVING_", "FEEDBACK_", "TRAINER_", "MLFLOW_")):
            monkeypatch.delenv(name)
    usual = settings()
    ours = {name for name, _ in variables(settings)}
    for name in settings.model_fields:
        if name.upper() not in ours:
            monkeypatch.setenv(name.upper(), "8")

    assert settings() == usual
