"""MLflow: a run and a logged model per accepted update, a numbered version per offer. The only file here that knows mlflow.

Invariant: a version name is bound to one digest for ever, and every call may be repeated. mlflow is imported at the first
call, never at start; whatever it cannot do now is `RegistryDown`, which callers wait out.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from feedback.manifest import ManifestError, verify
from feedback.schemas import version_name, version_number

VERSION, DIGEST, PARENT, UPDATE, URI = (
    "ratchet.version",
    "adapter.digest",
    "adapter.parent",
    "ratchet.update_id",
    "ratchet.model_uri",
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class RegistryDown(RuntimeError):
    """MLflow did not do it; the same call may succeed later."""


class VersionTaken(RuntimeError):
    """The version name stands for other bytes already."""


@dataclass(frozen=True)
class Logged:
    """A run and its logged model (`models:/m-…`; empty when the run carries no adapter)."""

    run_id: str
    model_uri: str


@dataclass(frozen=True)
class Registered:
    """One of our versions. `number` is MLflow's own, which only counts registrations."""

    version: str
    digest: str
    uri: str
    number: int
    tags: Mapping[str, str]

    @property
    def parent(self) -> str | None:
        return self.tags.get(PARENT)


def first_line(error: Exception) -> str:
    """What an error is, and the beginning of what it says; it may say nothing."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"


def _reachable(
    call: Callable[Concatenate[Registry, P], R],
) -> Callable[Concatenate[Registry, P], R]:
    """Any failure of the client or the network is RegistryDown; our own refusals pass through."""

    def wrapped(self: Registry, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from mlflow.exceptions import MlflowException
        from requests import RequestException

        try:
            return call(self, *args, **kwargs)
        except (MlflowException, RequestException, OSError) as error:
            raise RegistryDown(first_line(error)) from error

    update_wrapper(wrapped, call)
    return wrapped


class Registry:
    """One agent's experiment and registered model, both named after it."""

    def __init__(self, tracking_uri: str, agent: str, *, timeout_s: float = 20.0) -> None:
        self._uri = tracking_uri
        self._agent = agent
        self._client: Any = None
        # mlflow reads these at each request; its defaults retry for minutes, and we wait in our own queue.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(timeout_s)))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

    def load(self) -> None:
        """Import mlflow now: it takes ten seconds, better before the first offer waits for it."""
        import mlflow  # noqa: F401

    @_reachable
    def log_update(
        self,
        update_measures: Mapping[str, float],
        *,
        step: int,
        params: Mapping[str, str],
        adapter_dir: Path | None,
        tags: Mapping[str, str],
    ) -> Logged:
        """A finished run with its metrics and, for an adapter, a READY logged model. Found again by `ratchet.update_id`."""
        client = self._connect()
        experiment = self._experiment()
        run = self._run_of(experiment, tags.get(UPDATE)) or client.create_run(
            experiment, tags=dict(tags), run_name=tags.get(UPDATE)
        )
        run_id, uri = run.info.run_id, run.data.tags.get(URI, "")
        if uri or run.info.status == "FINISHED":
            return Logged(run_id, uri)
        self._log_values(run_id, update_measures, params, step)
        if adapter_dir is not None:
            uri = self._log_adapter(experiment, run_id, adapter_dir, tags)
            client.set_tag(run_id, URI, uri)
        client.set_terminated(run_id, "FINISHED")
        return Logged(run_id, uri)

    @_reachable
    def create_version(self, logged_uri: str, *, version: str, digest: str, tags: Mapping[str, str]) -> None:
        """Bind the name to these bytes. Repeating it is harmless; VersionTaken when the name means other bytes."""
        known = self._search(f"tags.`{VERSION}` = '{version}'")
        if known:
            _require_same(known[0], digest)
            return
        client = self._connect()
        self._ensure_model()
        made = client.create_model_version(
            self._agent,
            source=logged_uri,
            model_id=logged_uri.removeprefix("models:/"),
            tags={**tags, VERSION: version, DIGEST: digest},
            await_creation_for=0,
        )
        first = min(self._search(f"tags.`{VERSION}` = '{version}'"), key=lambda found: found.number)
        if first.number != int(made.version):
            client.delete_model_version(self._agent, made.version)
            _require_same(first, digest)

    @_reachable
    def find_version(self, version: str) -> Registered | None:
        """The version of that name."""
        found = self._search(f"tags.`{VERSION}` = '{version}'")
        return min(found, key=lambda registered: registered.number) if found else None

    @_reachable
    def find_digest(self, digest: str) -> Registered | None:
        """The version that stands for these bytes."""
        found = self._search(f"tags.`{DIGEST}` = '{digest}'")
        return min(found, key=lambda registered: registered.number) if found else None

    @_reachable
    def next_number(self) -> int:
        """One above the highest number ever registered."""
        return 1 + max((version_number(found.version) for found in self._search("")), default=0)

    @_reachable
    def list_versions(self) -> list[Registered]:
        """Every version, oldest first."""
        return sorted(self._search(""), key=lambda registered: registered.version)

    @_reachable
    def set_aliases(self, aliases: Mapping[str, str | None]) -> None:
        """Point aliases at our versions; None removes one. A version that MLflow lacks (the start) removes it too."""
        client = self._connect()
        for alias, version in aliases.items():
            found = self._search(f"tags.`{VERSION}` = '{version}'") if version else []
            if found:
                client.set_registered_model_alias(self._agent, alias, str(found[0].number))
            elif self._has_model():
                client.delete_registered_model_alias(self._agent, alias)

    @_reachable
    def download(self, uri: str, digest: str, *, into: Path) -> Path:
        """The adapter folder at `into`, complete and verified, or nothing there. ManifestError when MLflow's bytes differ.

        What lies there already is used where it is whole, and fetched again where it is not.
        """
        from mlflow.artifacts import download_artifacts

        if into.exists():
            try:
                verify(into, digest=digest)
                return into
            except ManifestError as error:
                log.warning("%s is fetched again: %s", into.name, error)
                shutil.rmtree(into)
        into.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=into.parent, prefix=f".{into.name}."))
        try:
            # A `models:/m-…` address is looked up on mlflow's global server, whatever `tracking_uri` says.
            where = self._connect().get_logged_model(uri.removeprefix("models:/")).artifact_location
            found = download_artifacts(artifact_uri=where, dst_path=str(temporary), tracking_uri=self._uri)
            verify(Path(found), digest=digest)
            Path(found).rename(into)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return into

    def _connect(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
        return self._client

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        client = self._connect()
        known = client.get_experiment_by_name(self._agent)
        if known is not None:
            return str(known.experiment_id)
        try:
            return str(client.create_experiment(self._agent))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return str(client.get_experiment_by_name(self._agent).experiment_id)

    def _run_of(self, experiment: str, update_id: str | None) -> Any:
        if update_id is None:
            return None
        found = self._connect().search_runs(
            [experiment], f"tags.`{UPDATE}` = '{update_id}'", order_by=["start_time ASC"], max_results=1
        )
        return found[0] if found else None

    def _log_values(
        self, run_id: str, measures: Mapping[str, float], params: Mapping[str, str], step: int
    ) -> None:
        from mlflow.entities import Metric, Param

        self._connect().log_batch(
            run_id,
            metrics=[Metric(name, value, step, step) for name, value in sorted(measures.items())],
            params=[Param(name, value) for name, value in sorted(params.items())],
        )

    def _log_adapter(self, experiment: str, run_id: str, adapter_dir: Path, tags: Mapping[str, str]) -> str:
        client = self._connect()
        model = client.create_logged_model(
            experiment, name="adapter", source_run_id=run_id, model_type="peft-lora", tags=dict(tags)
        )
        client.log_model_artifacts(model.model_id, str(adapter_dir))
        return str(client.finalize_logged_model(model.model_id, "READY").model_uri)

    def _ensure_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._connect().create_registered_model(self._agent, tags={"kind": "lora-adapter"})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _has_model(self) -> bool:
        return bool(self._connect().search_registered_models(f"name = '{self._agent}'"))

    def _search(self, condition: str) -> list[Registered]:
        query = f"name = '{self._agent}'" + (f" and {condition}" if condition else "")
        found: list[Registered] = []
        token = None
        while True:
            page = self._connect().search_model_versions(query, max_results=200, page_token=token)
            found += [_registered(version) for version in page if VERSION in version.tags]
            token = page.token
            if not token:
                return found


def _registered(found: Any) -> Registered:
    tags = dict(found.tags)
    return Registered(tags[VERSION], tags.get(DIGEST, ""), found.source, int(found.version), tags)


def _require_same(known: Registered, digest: str) -> None:
    if known.digest != digest:
        raise VersionTaken(f"{known.version} stands for {known.digest} already")


def first_free(agent: str, *, reserved: int, registry: Registry) -> str:
    """The next name that neither this trainer nor anyone else in MLflow has used."""
    return version_name(agent, max(reserved + 1, registry.next_number()))
