"""Writes `.env.example` from the settings classes themselves: `python -m deploy.env_example > .env.example`.

A test compares the file with this page, so a setting that is not listed there cannot exist.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

MODULES = ("deploy.stack.plan", "deploy.config", "serving.config", "feedback.config", "online_trainer.config")
_ROOT = Path(__file__).parent.parent
_HEAD = """\
# Every setting, with its default. Copy to .env (read by `ratchet`) or export what you need.
# What an agent is and how it learns is in its agent file, not here. Made by `make settings`.
"""


def settings_classes(modules: Sequence[str]) -> list[type[BaseSettings]]:
    """The settings classes that these modules define."""
    found = []
    for name in modules:
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and issubclass(value, BaseSettings) and value.__module__ == name:
                found.append(value)
    return found


def variables(settings: type[BaseSettings]) -> Iterator[tuple[str, FieldInfo]]:
    """The environment variable of each field."""
    prefix = settings.model_config.get("env_prefix", "")
    for name, info in settings.model_fields.items():
        alias = info.validation_alias
        yield str(alias) if alias else f"{prefix}{name}".upper(), info


def render(classes: Sequence[type[BaseSettings]]) -> str:
    """The page: one section a class, a variable listed where it is met first."""
    seen: set[str] = set()
    blocks = [_HEAD]
    for settings in classes:
        lines = [f"# --- {settings.__module__}"]
        for name, info in variables(settings):
            if name not in seen:
                seen.add(name)
                lines.append(_line(name, info))
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _line(name: str, info: FieldInfo) -> str:
    text = f"# {name}={_shown(info.get_default(call_default_factory=True))}"
    return f"{text}    # {info.description}" if info.description else text


def _shown(default: Any) -> str:
    if isinstance(default, Path) and default.is_relative_to(_ROOT):
        return str(default.relative_to(_ROOT))
    return "" if default is None else str(default)


if __name__ == "__main__":
    sys.stdout.write(render(settings_classes(MODULES)))
