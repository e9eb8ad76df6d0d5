"""Adapter folders on this machine by version and digest: fetched from MLflow, verified, and complete or not there at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from feedback.manifest import ManifestError, publish, verify
from feedback.schemas import AdapterRef
from serving.engines.replica import Refused

Fetch = Callable[[str, Path], Path]  # (uri, an empty folder to work in) -> where the files are


class AdapterCache:
    """Adapter folders by version and digest, each complete and verified or not there at all."""

    def __init__(self, home: Path, fetch: Fetch) -> None:
        self._home, self._fetch = (home / "adapters").absolute(), fetch

    def folder(self, ref: AdapterRef) -> Path:
        """The verified folder of a version; fetched when it is not here. Raises Refused for wrong bytes. Blocks."""
        if ref.uri is None or ref.digest is None:
            raise Refused("the split names no bytes for this version")
        final = self._home / f"{ref.version}-{ref.digest.removeprefix('sha256:')[:12]}"
        if not final.exists():
            self._download(ref.uri, ref.digest, final)
        try:
            verify(final, digest=ref.digest)
        except ManifestError as error:
            raise Refused(str(error)) from error
        return final

    def _download(self, uri: str, digest: str, final: Path) -> None:
        temporary = final.with_name(f".{final.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            found = self._fetch(uri, temporary)
            verify(found, digest=digest)
            publish(found, final)
        except ManifestError as error:
            raise Refused(str(error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


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
        from mlflow.artifacts import download_artifacts

        return Path(download_artifacts(artifact_uri=uri, dst_path=str(into), tracking_uri=tracking_uri))

    return fetch
