"""The cache of adapter folders: whole or not there, one download at a time, mended when damaged, read before it is loaded."""

import json
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedback.manifest import MANIFEST, WEIGHTS, seal
from feedback.schemas import AdapterRef
from serving.engines.adapter_cache import AdapterCache, fetch_from_mlflow
from serving.engines.replica import Refused
from tests.serving.harness import write_adapter

VERSION = "travel-desk-000001"


def copy(uri: str, into: Path) -> Path:
    return Path(shutil.copytree(Path(uri.removeprefix("file://")), into, dirs_exist_ok=True))


def test_the_cache_never_shows_half_an_adapter(tmp_path: Path) -> None:
    ref = write_adapter(tmp_path / "made", VERSION)

    def interrupted(uri: str, into: Path) -> Path:
        (into / WEIGHTS).write_bytes(b"half")
        raise OSError("the registry went away")

    cache = AdapterCache(tmp_path, interrupted)
    with pytest.raises(OSError, match="went away"):
        cache.folder(ref)
    assert list((tmp_path / "adapters").iterdir()) == []

    def wrong(uri: str, into: Path) -> Path:
        shutil.copytree(Path(uri.removeprefix("file://")), into, dirs_exist_ok=True)
        (into / "stale.bin").write_bytes(b"old")
        return into

    with pytest.raises(Refused):
        AdapterCache(tmp_path, wrong).folder(ref)
    assert list((tmp_path / "adapters").iterdir()) == []


def test_two_replicas_that_want_one_version_download_it_once(tmp_path: Path) -> None:
    ref = write_adapter(tmp_path / "made", VERSION)
    started, fetched = threading.Event(), []

    def slow(uri: str, into: Path) -> Path:
        fetched.append(uri)
        started.set()
        (into / "part").touch()
        threading.Event().wait(0.2)  # the other one comes meanwhile
        (into / "part").unlink()
        return copy(uri, into)

    cache = AdapterCache(tmp_path, slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.folder, ref)
        assert started.wait(5)
        second = pool.submit(cache.folder, ref)
        assert first.result() == second.result()
    assert len(fetched) == 1


def test_a_damaged_folder_is_fetched_once_more(tmp_path: Path) -> None:
    ref = write_adapter(tmp_path / "made", VERSION)
    cache = AdapterCache(tmp_path, copy)
    weights = cache.folder(ref) / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:10])

    assert (cache.folder(ref) / WEIGHTS).read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ({"lora_A": (0x3F80, 0x0001), "lora_B": (0x3F80, 0x8000)}, None),
        ({"lora_A": (0x3F80, 0x0001), "lora_B": (0x0000, 0x8000)}, "no effect"),
        ({"lora_A": (0x0000, 0x0000), "lora_B": (0x3F80, 0x3F80)}, "no effect"),
        ({"lora_A": (0x3F80, 0x7FC0), "lora_B": (0x3F80, 0x3F80)}, "lora_A"),
        ({"lora_A": (0x3F80, 0x3F80), "lora_B": (0x3F80, 0xFF80)}, "lora_B"),
    ],
)
def test_bfloat16_is_read_by_its_bits(
    tmp_path: Path, words: dict[str, tuple[int, int]], refused: str | None
) -> None:
    """1.0 is 3f80, -0.0 is 8000, NaN is 7fc0, -inf is ff80."""
    ref = with_weights(
        write_adapter(tmp_path / "made", VERSION), {name: ("BF16", pair) for name, pair in words.items()}
    )
    cache = AdapterCache(tmp_path, copy)
    if refused is None:
        cache.folder(ref)
    else:
        with pytest.raises(Refused, match=refused):
            cache.folder(ref)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    ref = write_adapter(tmp_path / "made", VERSION)
    whole = with_weights(ref, {"lora_B": ("I16", (1, 1))})
    with pytest.raises(Refused, match="I16"):
        AdapterCache(tmp_path / "one", copy).folder(whole)
    (tmp_path / "made" / VERSION / WEIGHTS).write_bytes(b"not safetensors")
    broken = resealed(ref)
    with pytest.raises(Refused, match="cannot be read"):
        AdapterCache(tmp_path / "two", copy).folder(broken)


def test_an_address_of_mlflow_is_looked_up_where_the_gateway_was_told(tmp_path: Path) -> None:
    """A `models:/m-…` address means the server in the settings, whatever this process's global one is."""
    from mlflow import MlflowClient

    ref = write_adapter(tmp_path / "made", VERSION)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("adapters", artifact_location=(tmp_path / "artifacts").as_uri())
    model = client.create_logged_model(experiment, name="adapter")
    client.log_model_artifacts(model.model_id, str(tmp_path / "made" / VERSION))
    address = client.finalize_logged_model(model.model_id, "READY").model_uri

    cache = AdapterCache(tmp_path, fetch_from_mlflow(uri))
    folder = cache.folder(ref.model_copy(update={"uri": address}))

    assert address.startswith("models:/m-")
    assert (folder / WEIGHTS).read_bytes() == (tmp_path / "made" / VERSION / WEIGHTS).read_bytes()


def with_weights(ref: AdapterRef, tensors: dict[str, tuple[str, tuple[int, int]]]) -> AdapterRef:
    """The same adapter with these tensors of two 16-bit words each, written by hand: numpy has no bfloat16."""
    header = {
        name: {"dtype": kind, "shape": [2], "data_offsets": [4 * at, 4 * at + 4]}
        for at, (name, (kind, _)) in enumerate(tensors.items())
    }
    text = json.dumps(header).encode()
    words = b"".join(struct.pack("<2H", *pair) for _, pair in tensors.values())
    assert ref.uri is not None
    (Path(ref.uri.removeprefix("file://")) / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + words)
    return resealed(ref)


def resealed(ref: AdapterRef) -> AdapterRef:
    assert ref.uri is not None
    folder = Path(ref.uri.removeprefix("file://"))
    (folder / MANIFEST).unlink()
    return ref.model_copy(update={"digest": seal(folder)})
