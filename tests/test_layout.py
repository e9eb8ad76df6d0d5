"""The rules of the repository itself: imports only go down, one owner per package, no addresses in what is shipped."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("feedback", "tools", "serving", "online_trainer", "deploy")
MAY_IMPORT = {
    "feedback": {"feedback"},
    "tools": {"tools", "feedback"},
    "serving": {"serving", "tools", "feedback"},
    "online_trainer": {"online_trainer", "tools", "feedback"},
    "deploy": set(PACKAGES),
}
OWNERS = {
    "kafka": ("feedback/kafka.py", "feedback/kafka_reader.py", "deploy/bench/bare_loop.py"),
    "mlflow": ("online_trainer/registry.py", "serving/engines/adapter_cache.py"),
    "supervisor": ("deploy/stack/supervision.py",),
    "fastapi": ("serving/", "deploy/api/"),
}
HEAVY = {"torch", "transformers", "mlflow", "sklearn", "peft", "vllm", "scipy", "matplotlib"}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module named by an import statement, wherever in the file it stands."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return frozenset(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_only_go_down_and_are_absolute(package: str) -> None:
    forbidden = {*PACKAGES, ""} - MAY_IMPORT[package]

    wrong = {
        (name_of(path), name)
        for path in modules()
        for name in imports_of(path)
        if path.relative_to(ROOT).parts[0] == package and name.split(".")[0] in forbidden
    }

    assert wrong == set()


@pytest.mark.parametrize("package", OWNERS)
def test_a_third_party_package_has_one_owner(package: str) -> None:
    users = {name_of(path) for path in modules() if any(i.split(".")[0] == package for i in imports_of(path))}

    assert {user for user in users if not user.startswith(OWNERS[package])} == set()


def test_every_module_says_what_it_is() -> None:
    silent = [
        name_of(path)
        for path in modules()
        if path.name != "__init__.py" and not ast.get_docstring(parsed(path))
    ]
    talking = [
        name_of(path) for path in modules() if path.name == "__init__.py" and len(parsed(path).body) > 1
    ]

    assert (silent, talking) == ([], [])


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in modules()} | {path.parent for path in (ROOT / "tests").rglob("*.py")}

    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "name", ["deploy.cli", *(f"{package}.config" for package in PACKAGES if package != "tools")]
)
def test_light_modules_stay_light(name: str) -> None:
    """`--help` answers before torch is imported."""
    code = f"import sys, {name}; print(sorted({HEAVY} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)

    assert done.stdout.strip() == "[]"


def shipped() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_locks_and_settings_name_no_address() -> None:
    kinds = {".txt", ".toml", ".xml", ".sh", ".cfg", ".properties"}
    pages = [
        path for path in shipped() if path.suffix in kinds or path.name in {"Makefile", "run", ".env.example"}
    ]
    address = re.compile(r"(?:https?|file|ftp)://(?!127\.0\.0\.1|localhost)")

    assert len(pages) > 5
    assert [name_of(path) for path in pages if address.search(path.read_text())] == []


def test_nothing_shipped_names_this_machines_folders() -> None:
    texts = [
        path for path in shipped() if path.suffix in {".py", ".md", ".toml", ".yaml", ".sh", ".xml", ".txt"}
    ]
    folder = str(ROOT) + "/"

    assert [name_of(path) for path in texts if folder in path.read_text()] == []
