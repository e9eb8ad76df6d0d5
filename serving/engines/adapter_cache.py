"""Adapter folders on this machine by version and digest: fetched from MLflow, verified, and complete or not there at all."""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from feedback.manifest import WEIGHTS, ManifestError, publish, verify
from feedback.schemas import AdapterRef
from serving.engines.replica import Refused
from serving.engines.weights import check_weights

_log = logging.getLogger(__name__)

Fetch = Callable[[str, Path], Path]  # (uri, an empty folder to work in) -> where the files are


class AdapterCache:
    """One folder for each version and digest. Replicas that want the same one wait for one download."""

    def __init__(self, home: Path, fetch: Fetch) -> None:
        self._home, self._fetch = (home / "adapters").absolute(), fetch
        self._locks: dict[str, threading.Lock] = {}

    def folder(self, ref: AdapterRef) -> Path:
        """The verified folder of a version; fetched when it is not here. Raises Refused for bytes not to be served. Blocks."""
        if ref.uri is None or ref.digest is None:
            raise Refused("the split names no bytes for this version")
        final = self._home / f"{ref.version}-{ref.digest.removeprefix('sha256:')[:12]}"
        with self._locks.setdefault(final.name, threading.Lock()):
            if not _is_whole(final, ref.digest):
                self._download(ref.uri, ref.digest, final)
            check_weights(final / WEIGHTS)
        return final

    def _download(self, uri: str, digest: str, final: Path) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=self._home, prefix=f".{final.name}."))
        work = temporary / "files"  # readable by the engine's user, which a folder of `mkdtemp` is not
        work.mkdir()
        try:
            found = self._fetch(uri, work)
            verify(found, digest=digest)
            publish(found, final)
        except ManifestError as error:
            raise Refused(str(error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_whole(folder: Path, digest: str) -> bool:
    """Whether it is here as it was published; a damaged one is removed."""
    if not folder.exists():
        return False
    try:
        verify(folder, digest=digest)
    except ManifestError as error:
        _log.warning("damaged, fetched again: %s", error)
        shutil.rmtree(folder)
        return False
    return True


def warm_mlflow() -> None:
    """Import MLflow (ten seconds on a slow core) while there is nothing else to do."""
    import mlflow.artifacts  # noqa: F401


def fetch_from_mlflow(tracking_uri: str) -> Fetch:
    """Downloads by MLflow, which is imported at the first use: that takes seconds."""

    def fetch(uri: str, into: Path) -> Path:
        if uri.startswith("file://"):
            return Path(shutil.copytree(uri.removeprefix("file://"), into, dirs_exist_ok=True))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient
        from mlflow.artifacts import download_artifacts

        if uri.startswith("models:/"):  # mlflow would look it up on its global server
            client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
            uri = client.get_logged_model(uri.removeprefix("models:/")).artifact_location
        return Path(download_artifacts(artifact_uri=uri, dst_path=str(into), tracking_uri=tracking_uri))

    return fetch
