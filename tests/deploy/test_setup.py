"""The set-up script where something is missing: one line that says what to install, and nothing half done."""

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEEDED = ("bash", "dirname", "sed", "head", "id", "cat", "cut", "sha256sum", "printf", "uname")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the shell's own tools and nothing else: no Java, no Maven, no apt-get, no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def set_up(path: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = cwd / "deploy" / "setup.sh"
    return subprocess.run(
        ["bash", str(script), *arguments], env={"PATH": str(path)}, capture_output=True, text=True
    )


def test_missing_java_is_one_line_that_says_what_to_install(bare_path: Path) -> None:
    done = set_up(bare_path, "java")

    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        "setup: Java 17 or later and Maven are missing; install them "
        "(Debian: apt-get install default-jre-headless maven) and run again"
    ]


def test_a_java_that_is_too_old_counts_as_missing(bare_path: Path) -> None:
    old = bare_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    (bare_path / "mvn").symlink_to(old)
    (bare_path / "sh").symlink_to("/bin/sh")

    assert set_up(bare_path, "java").returncode == 1
    old.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\" 2025-04-15' >&2\n")
    assert set_up(bare_path, "java").returncode == 0


def test_a_missing_python_is_one_line_too(bare_path: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "deploy").mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "setup.sh", clone / "deploy")

    done = set_up(bare_path, cwd=clone)

    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is missing" in done.stderr
    assert not (clone / ".venv").exists()


@pytest.fixture
def clone(tmp_path: Path, bare_path: Path) -> Path:
    """The set-up's files and a .venv whose Python only notes what it was asked; uv and the packages are there."""
    clone = tmp_path / "clone"
    for name in ("deploy/setup.sh", "deploy/kafka/pom.xml", "pyproject.toml"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    shutil.copytree(ROOT / "deploy" / "locks", clone / "deploy" / "locks")
    for name in ("bin/python", "uv/bin/uv"):
        program = clone / ".venv" / name
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/bash\necho "$@" >>{clone}/asked\n')
        program.chmod(0o755)
    for name in ("env", "grep", "mkdir", "rm"):
        found = shutil.which(name)
        assert found is not None
        (bare_path / name).symlink_to(found)
    return clone


def stamp(clone: Path, name: str, *made_from: str) -> None:
    content = b"".join((clone / "deploy" / path).read_bytes() for path in made_from)
    (clone / ".venv" / "stamps").mkdir(exist_ok=True)
    (clone / ".venv" / "stamps" / name).write_text(sha256(content).hexdigest()[:16])


def test_missing_java_is_said_before_anything_is_installed(bare_path: Path, clone: Path) -> None:
    done = set_up(bare_path, cwd=clone)

    assert done.returncode == 1
    assert done.stderr.strip().startswith("setup: Java 17 or later and Maven are missing;")
    assert "install" not in (clone / "asked").read_text()


def test_the_time_is_kept_of_a_set_up_that_did_something(bare_path: Path, clone: Path) -> None:
    stamp(clone, "kafka", "kafka/pom.xml", "locks/kafka.txt")
    stamp(clone, "uv", "locks/uv.txt")

    done = set_up(bare_path, cwd=clone)

    assert done.returncode == 0, done.stderr
    kept = clone / ".venv" / "stamps" / "setup_s"
    assert float(kept.read_text()) >= 0.0
    kept.write_text("123")
    assert set_up(bare_path, cwd=clone).returncode == 0
    assert kept.read_text() == "123"


def test_an_unknown_step_is_refused(bare_path: Path) -> None:
    done = set_up(bare_path, "jaav")

    assert (done.returncode, done.stderr.strip()) == (
        1,
        "setup: unknown step 'jaav'; use nothing, java, postgres or lock",
    )


def test_every_locked_package_is_pinned_and_hashed() -> None:
    for name in ("cpu", "uv"):
        blocks = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text().replace("\\\n", " ").splitlines()
        pins = [line for line in blocks if line.strip() and not line.startswith("#")]

        assert pins
        assert all("==" in line.split()[0] and "--hash=sha256:" in line for line in pins)
