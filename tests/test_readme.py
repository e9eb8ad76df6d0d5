"""The README tells the truth: its tree is the tree, its commands exist, its code runs as far as it can here."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PACKAGES = ("feedback", "tools", "serving", "online_trainer", "deploy")


def tree_in_readme() -> set[str]:
    block = re.search(r"<details>.*?```\n(.*?)```", README, re.DOTALL)
    assert block is not None
    found, folders = set(), dict[int, str]()
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        word = line.split()[0]
        if word.endswith("/"):
            folders = {level: name for level, name in folders.items() if level < depth} | {depth: word}
            continue
        assert len(line.split()) > 1, f"{word} has no phrase"
        above = [folders[level] for level in sorted(folders) if level < depth]
        found.add("".join(above) + word + ".py")
    return found


def test_the_tree_names_every_module_and_no_other() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = {
        path
        for path in listed.stdout.split()
        if path.split("/")[0] in PACKAGES and not path.endswith("__init__.py") and (ROOT / path).exists()
    }

    assert tree_in_readme() == modules


def test_every_path_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:feedback|tools|serving|online_trainer|deploy|tests)/[\w./-]+)", README))

    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in set(re.findall(r"`?make (\w[\w-]*)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("line", sorted(set(re.findall(r"ratchet ((?:[a-z]+ ?){1,2})", README))))
def test_the_verbs_exist(line: str) -> None:
    words = line.split()
    for length in range(len(words), 0, -1):
        if CliRunner().invoke(app, [*words[:length], "--help"]).exit_code == 0:
            return
    pytest.fail(f"ratchet {line} is not a command")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_python_is_python(code: str) -> None:
    assert ast.parse(code).body


@pytest.mark.parametrize(
    ("path", "name"), [("online_trainer/worker.py", "run"), ("deploy/canary/controller.py", "turn")]
)
def test_the_two_loops_fit_on_a_screen(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    loop = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)

    assert loop.end_lineno is not None and loop.end_lineno - loop.lineno < 30
