"""`.env.example` lists every setting of every process, and nothing else."""

from pathlib import Path

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
