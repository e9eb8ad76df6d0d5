"""Which versions run: what the split wants against what each replica has. A split takes effect only when its versions are routable.

The base model never answers under an adapter's name; a version is unloaded only when nobody holds a lease on it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from feedback.schemas import AdapterRef, TrafficSplit
from serving.engines.adapter_cache import AdapterCache
from serving.engines.engine import EngineDown, EngineError, Sampled, VersionMissing
from serving.engines.replica import Refused, Replica
from serving.engines.router import versions

_log = logging.getLogger(__name__)

SLOTS = 5  # champion, candidate, incoming, draining, holdout
_TICK_S = 0.5
_RETRY_S = (1.0, 2.0, 5.0, 10.0)  # between tries to fetch or load one version
_KEEP_S = 60.0  # an adapter nobody wants stays loaded this long while there are slots


class NotRoutable(Exception):
    """No healthy engine has this version now."""


class Lease:
    """One interaction's hold on a version and the replica that serves it."""

    def __init__(self, adapters: "Adapters", version: str, replica: Replica) -> None:
        self.version, self._adapters, self._replica = version, adapters, replica

    async def sample(
        self, prompt_ids: Sequence[int], *, params: Mapping[str, Any]
    ) -> AsyncGenerator[Sampled, None]:
        """Sample one turn; a replica that fails before the first token is left for another one."""
        tried: set[str] = set()
        while True:
            begun = False
            replica = self._replica
            replica.in_flight += 1
            try:
                stream = replica.engine.sample(prompt_ids, model=self.version, params=params)
                async with aclosing(stream):
                    async for sampled in stream:
                        begun = True
                        yield sampled
                return
            except (EngineDown, VersionMissing) as error:
                self._adapters.suspect(replica, self.version, error)
                tried.add(replica.engine.url)
                if begun or not self._move(tried):
                    raise EngineDown("no engine can answer now") from error
            finally:
                replica.in_flight -= 1

    def _move(self, tried: set[str]) -> bool:
        other = self._adapters.pick(self.version, without=tried)
        if other is None:
            return False
        self._replica = other
        return True


class Adapters:
    """The reconciler. `split` is the one in force; `want` hands in a newer one."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        cache: AdapterCache,
        *,
        wanted: TrafficSplit,
        on_change: Callable[["Adapters"], None] = lambda _: None,
    ) -> None:
        self.replicas = tuple(replicas)
        self.split: TrafficSplit | None = None
        self.wanted = wanted
        self.load_seconds: list[tuple[str, float]] = []
        self._cache, self._on_change = cache, on_change
        self._leases: Counter[str] = Counter()
        self._wake, self._changed = asyncio.Event(), asyncio.Event()
        self._retry: dict[tuple[str, str], tuple[int, float]] = {}
        self._loading: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._one_load = {replica.engine.url: asyncio.Lock() for replica in replicas}
        self._unwanted_since: dict[tuple[str, str], float] = {}

    def want(self, split: TrafficSplit) -> None:
        """A newer split was read."""
        if split.generation > self.wanted.generation:
            self.wanted = split
            self._wake.set()

    def ready(self) -> str | None:
        """None when requests can be answered; else why not."""
        if self.split is not None and self.pick(self.split.champion.version) is not None:
            return None
        problems = [
            f"{replica.engine.url}: {replica.problem}" for replica in self.replicas if replica.problem
        ]
        refused = [
            f"{version}: {why}" for replica in self.replicas for version, why in replica.refused.items()
        ]
        return "; ".join(problems + refused) or "adapters are being loaded"

    @contextmanager
    def lease(self, version: str) -> Iterator[Lease]:
        """Hold a version for one interaction. Raises NotRoutable."""
        replica = self.pick(version)
        if replica is None:
            raise NotRoutable(version)
        self._leases[version] += 1
        try:
            yield Lease(self, version, replica)
        finally:
            self._leases[version] -= 1

    async def routable(self, version: str, *, within_s: float) -> bool:
        """Wait for a version that is being loaded."""
        limit = asyncio.get_running_loop().time() + within_s
        while self.pick(version) is None:
            self._changed.clear()
            self._wake.set()
            try:
                async with asyncio.timeout_at(limit):
                    await self._changed.wait()
            except TimeoutError:
                return self.pick(version) is not None
        return True

    def pick(self, version: str, *, without: set[str] | frozenset[str] = frozenset()) -> Replica | None:
        """The least busy replica that has it."""
        able = [
            replica
            for replica in self.replicas
            if version in replica.routable and replica.engine.url not in without
        ]
        return min(able, key=lambda replica: replica.in_flight, default=None)

    def in_flight(self) -> int:
        """Leases held now."""
        return self._leases.total()

    def suspect(self, replica: Replica, version: str, error: EngineError) -> None:
        """A request met a replica that is not what we think: look again now."""
        if isinstance(error, VersionMissing):
            replica.lost(version)
        else:
            replica.down(str(error))
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self.reconcile()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._wake.wait()
        finally:
            for task in self._loading.values():
                task.cancel()

    async def reconcile(self) -> None:
        """One pass: look, load, put the split in force, unload."""
        await asyncio.gather(*(self._tend(replica) for replica in self.replicas))
        self._enact()
        await asyncio.gather(*(self._retire(replica) for replica in self.replicas))
        self._changed.set()
        self._on_change(self)

    async def _tend(self, replica: Replica) -> None:
        """Look, and start what is missing; a slow download never holds up a rollback."""
        await replica.refresh()
        if replica.problem is not None:
            return
        for ref in self._desired():
            key = (replica.engine.url, ref.version)
            due = self._retry.get(key, (0, 0.0))
            done = ref.version in replica.routable or ref.version in replica.refused
            if not done and key not in self._loading and time.monotonic() >= due[1]:
                self._loading[key] = asyncio.create_task(self._try_to_serve(replica, ref, tries=due[0]))

    async def _try_to_serve(self, replica: Replica, ref: AdapterRef, *, tries: int) -> None:
        key = (replica.engine.url, ref.version)
        try:
            await self._serve(replica, ref)
            self._retry.pop(key, None)
        except Refused as error:
            replica.refused[ref.version] = str(error)
            _log.error("version %s refused on %s: %s", ref.version, replica.engine.url, error)
            await self._drop(replica, ref.version)
        except Exception as error:  # noqa: BLE001 - engine or registry out of reach: tried again later
            wait = _RETRY_S[min(tries, len(_RETRY_S) - 1)]
            self._retry[key] = (tries + 1, time.monotonic() + wait)
            _log.warning("version %s not loaded on %s: %s", ref.version, replica.engine.url, error)
        finally:
            del self._loading[key]
            self._wake.set()

    async def _serve(self, replica: Replica, ref: AdapterRef) -> None:
        begun = time.monotonic()
        folder = None if ref.uri is None else await asyncio.to_thread(self._cache.folder, ref)
        async with self._one_load[replica.engine.url]:
            if folder is not None and ref.version not in replica.loaded:
                await self._make_room(replica)
            await replica.serve(ref, folder)
        self.load_seconds.append((ref.version, time.monotonic() - begun))
        _log.info("version %s routable on %s", ref.version, replica.engine.url)

    async def _drop(self, replica: Replica, version: str) -> None:
        if version in replica.loaded:
            try:
                await replica.drop(version)
            except EngineError as error:
                _log.warning("version %s not unloaded: %s", version, error)

    def _desired(self) -> list[AdapterRef]:
        """Champions first: an old one keeps answering until the new split is in force."""
        refs: dict[str, AdapterRef] = {}
        for split in (self.split, self.wanted):
            if split is None:
                continue
            holdout = split.holdout.ref if split.holdout else None
            for ref in (split.champion, holdout, split.candidate):
                if ref is not None:
                    refs.setdefault(ref.version, ref)
        return list(refs.values())

    def _enact(self) -> None:
        """Put the wanted split in force once all its versions are routable; a refused candidate gets no traffic."""
        wanted = self.wanted
        if self.split is not None and wanted.generation <= self.split.generation:
            return
        if wanted.candidate is not None and self._refused_everywhere(wanted.candidate.version):
            wanted = wanted.model_copy(update={"candidate": None, "canary_id": None, "share": 0.0})
        if all(self.pick(version) is not None for version in versions(wanted)):
            self.split = wanted
            _log.info("split %d in force: champion %s", wanted.generation, wanted.champion.version)

    def _refused_everywhere(self, version: str) -> bool:
        healthy = [replica for replica in self.replicas if replica.problem is None]
        return bool(healthy) and all(version in replica.refused for replica in healthy)

    async def _retire(self, replica: Replica) -> None:
        """Unload what nobody wants any more, after a while."""
        for version in self._spare(replica):
            if time.monotonic() - self._unwanted_since[replica.engine.url, version] >= _KEEP_S:
                await self._drop(replica, version)

    async def _make_room(self, replica: Replica) -> None:
        """Before a load: unload what nobody wants, the longest unwanted first, until a slot is free."""
        for version in self._spare(replica):
            if len(replica.loaded) < (replica.slots or SLOTS):
                return
            await self._drop(replica, version)

    def _spare(self, replica: Replica) -> list[str]:
        """Loaded versions that are neither wanted nor leased, the longest unwanted first."""
        wanted = {ref.version for ref in self._desired()}
        spare = [name for name in replica.loaded if name not in wanted and self._leases[name] <= 0]
        now = time.monotonic()
        for name in spare:
            self._unwanted_since.setdefault((replica.engine.url, name), now)
        for key in list(self._unwanted_since):
            if key[0] == replica.engine.url and key[1] not in spare:
                del self._unwanted_since[key]
        return sorted(spare, key=lambda name: self._unwanted_since[replica.engine.url, name])
