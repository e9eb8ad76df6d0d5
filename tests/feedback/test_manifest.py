"""Half an adapter, another adapter's file or changed bytes are never taken for the adapter (case 7)."""

import json
from pathlib import Path

import pytest

from feedback.manifest import CONFIG, MANIFEST, PROBE, WEIGHTS, ManifestError, publish, seal, verify


def adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(weights)
    (folder / PROBE).write_text("[]")
    return folder


def test_a_sealed_folder_verifies_and_its_digest_is_its_bytes(tmp_path: Path) -> None:
    one, other = adapter(tmp_path / "a"), adapter(tmp_path / "b")
    digest = seal(one)
    assert digest == seal(other) == verify(one) == verify(one, digest=digest)
    assert digest.startswith("sha256:")
    assert seal(adapter(tmp_path / "c", b"weightz")) != digest


def test_a_folder_without_its_manifest_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=MANIFEST):
        verify(adapter(tmp_path / "a"))


@pytest.mark.parametrize("size", [0, 3])
def test_a_half_written_file_is_seen(tmp_path: Path, size: int) -> None:
    folder = adapter(tmp_path / "a")
    seal(folder)
    (folder / WEIGHTS).write_bytes(b"weights"[:size])
    with pytest.raises(ManifestError, match="SHA-256"):
        verify(folder)


def test_a_missing_file_is_seen(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    seal(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(ManifestError, match="missing"):
        verify(folder)


def test_a_stale_weights_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    (folder / "adapter_model.bin").write_bytes(b"old")
    with pytest.raises(ManifestError, match=r"adapter_model\.bin"):
        seal(folder)
    (folder / "adapter_model.bin").unlink()
    seal(folder)
    (folder / "adapter_model.bin").write_bytes(b"old")
    with pytest.raises(ManifestError, match=r"adapter_model\.bin"):
        verify(folder)


def test_another_version_under_the_same_name_is_seen(tmp_path: Path) -> None:
    digest = seal(adapter(tmp_path / "a"))
    other = adapter(tmp_path / "b", b"other")
    seal(other)
    with pytest.raises(ManifestError, match="expected"):
        verify(other, digest=digest)


def test_a_manifest_that_was_cut_short_is_not_read(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    seal(folder)
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: len(text) // 2])
    with pytest.raises(ManifestError, match=MANIFEST):
        verify(folder)
    (folder / MANIFEST).write_text(json.dumps({"other": 1}))
    with pytest.raises(ManifestError, match=MANIFEST):
        verify(folder)


@pytest.mark.parametrize("text", ["[]", '{"files": 5}', '{"files": null}', '{"files": ["a"]}', '"files"'])
def test_a_manifest_of_another_type_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ManifestError, match="no readable manifest"):
        verify(tmp_path)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    first, second, final = adapter(tmp_path / "1"), adapter(tmp_path / "2", b"new"), tmp_path / "v3"
    seal(first)
    seal(second)
    publish(first, final)
    with pytest.raises(FileExistsError):
        publish(second, final)
    assert (final / WEIGHTS).read_bytes() == b"weights"
    verify(final)
