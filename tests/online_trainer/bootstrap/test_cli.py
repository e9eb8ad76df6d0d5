"""The command parses before anything heavy is imported, and shows its steps to people and to programs."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from online_trainer.bootstrap.cli import app
from online_trainer.bootstrap.display import Bar, JsonLines
from online_trainer.bootstrap.grow import Progress

STEP = Progress(stage="repeats", step=1, steps=2, loss=0.5, tokens=2048)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom online_trainer.bootstrap.cli import app\n"
        "done = CliRunner().invoke(app, ['grow', '--help'])\n"
        "assert done.exit_code == 0 and '--dialogues' in done.output\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"COLUMNS": "200", "NO_COLOR": "1"}, timeout=60
    )


def test_a_missing_file_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["grow", "--dialogues", "nowhere.jsonl", "--out", "x"])
    assert done.exit_code == 2 and "nowhere.jsonl" in done.output


def test_programs_read_one_object_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLines() as display:
        display.show(STEP)
    line = json.loads(capsys.readouterr().out)
    assert line.pop("elapsed_s") >= 0 and line == vars(STEP)


def test_people_see_the_stage_and_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as display:
        display.show(STEP)
    shown = capsys.readouterr().out
    assert "repeats" in shown and "1/2" in shown and "loss 0.5000" in shown
