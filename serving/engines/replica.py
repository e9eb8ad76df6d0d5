"""One engine replica: what it has, checked before it is used.

A version is routable here only after the engine listed it under our own path (or, for the declared start, as its
base model) and a probe agreed with the trainer. A check that fails refuses the version, never the traffic.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from feedback.probe import Probe, disagreement, read_probe
from feedback.schemas import AdapterRef
from serving.engines.engine import Card, Engine, EngineBroken, EngineError, EngineSlow

_log = logging.getLogger(__name__)

_SHARP = -0.2  # log-probability at T = 0.01 that only raw mode falls below
_CHECKED_TOKENS = 4
_PATIENCE = 12  # looks in a row without an answer before a busy engine counts as gone


class Refused(Exception):
    """This version must not be served from this engine; the text is the reason."""


class Unfit(Exception):
    """This engine cannot be used at all as it was started; the text says which flag is missing."""


class Replica:
    """State of one engine as last seen."""

    def __init__(
        self, engine: Engine, *, base_version: str, check_prompt: Sequence[int], slots_needed: int
    ) -> None:
        self.engine = engine
        self.problem: str | None = "not seen yet"
        self.routable: set[str] = set()
        self.refused: dict[str, str] = {}
        self.loaded: dict[str, str] = {}  # adapters the engine has -> their path
        self.in_flight = 0
        self.slots: int | None = None
        self._base_version, self._check_prompt = base_version, tuple(check_prompt)
        self._slots_needed = slots_needed
        self._base: str | None = None
        self._slow = 0
        self._base_scores: dict[tuple[int, ...], list[float]] = {}

    async def refresh(self) -> None:
        """Ask what it has; what it lost is no longer routable."""
        try:
            cards = await self.engine.models()
            self._take(cards)
            if self.problem is not None:
                await self._check()
            self.problem, self._slow = None, 0
        except EngineSlow as error:
            self._slow += 1
            if self.problem is not None or self._slow >= _PATIENCE:
                self._fail(str(error))
        except EngineError as error:
            self._fail(str(error))
        except Unfit as error:
            self._fail(str(error))
            _log.error("engine %s cannot be used: %s", self.engine.url, error)

    def lost(self, version: str) -> None:
        """The engine said that it does not have it."""
        self.routable.discard(version)

    def down(self, reason: str) -> None:
        """A request found it out of reach: nothing is routed here until it was seen again."""
        self._fail(reason)

    async def serve(self, ref: AdapterRef, folder: Path | None) -> None:
        """Make a version routable. Raises Refused, or EngineError to try again later."""
        if folder is None:
            await self._serve_base(ref.version)
            return
        path = str(folder)
        known = self.loaded.get(ref.version)
        if ref.version == self._base:
            raise Refused("the engine serves its base model under this adapter's name")
        if known is not None and known != path:
            raise Refused("the engine has this name for another path: a name is never bound to other bytes")
        if known is None:
            await self.engine.load(ref.version, path)
            self._take(await self.engine.models())
            if self.loaded.get(ref.version) != path:
                raise EngineBroken("the engine took an adapter and does not list it")
        try:
            probe = read_probe(folder)
        except ValueError as error:
            raise Refused(str(error)) from error
        await self._probe(ref.version, probe)
        self.routable.add(ref.version)

    async def drop(self, version: str) -> None:
        """Forget an adapter."""
        self.routable.discard(version)
        await self.engine.unload(version)
        self.loaded.pop(version, None)

    async def _serve_base(self, version: str) -> None:
        """The declared start without an adapter is the base model, under the name it was started with."""
        if version != self._base_version:
            raise Refused("only the declared start may be the base model")
        if self._base != version:
            raise Refused(f"the engine must be started with --served-model-name {version}")
        self.routable.add(version)

    async def _probe(self, version: str, probe: Probe) -> None:
        """The adapter must differ from the base on this engine and agree with the trainer."""
        found = [await self.engine.score(prompt, model=version) for prompt in probe.prompts]
        base = [await self._base_score(prompt) for prompt in probe.prompts]
        if reason := disagreement(probe, found=found, base=base):
            raise Refused(reason)

    async def _base_score(self, prompt: tuple[int, ...]) -> list[float]:
        if prompt not in self._base_scores:
            assert self._base is not None
            if len(self._base_scores) > 64:
                self._base_scores.clear()
            self._base_scores[prompt] = await self.engine.score(prompt, model=self._base)
        return self._base_scores[prompt]

    async def _check(self) -> None:
        """Once per appearance: token ids, processed log-probabilities, enough slots."""
        assert self._base is not None
        params = {"max_tokens": _CHECKED_TOKENS, "temperature": 0.01}
        logprobs: list[float] = []
        async for sampled in self.engine.sample(self._check_prompt, model=self._base, params=params):
            if len(sampled.token_ids) != len(sampled.logprobs):
                raise Unfit("it returns another number of log-probabilities than of tokens")
            logprobs += sampled.logprobs
        if not logprobs or not sum(logprobs) / len(logprobs) >= _SHARP:
            raise Unfit(
                "its log-probabilities ignore the temperature: start it with --logprobs-mode processed_logprobs"
            )
        self.slots = await self.engine.slots()
        if self.slots is not None and self.slots < self._slots_needed:
            raise Unfit(f"it has {self.slots} adapter slots: start it with --max-loras {self._slots_needed}")

    def _take(self, cards: Sequence[Card]) -> None:
        bases = [card.name for card in cards if card.parent is None]
        if not bases:
            raise EngineBroken("the engine lists no base model")
        base = self._base_version if self._base_version in bases else bases[0]
        if base != self._base:
            self._base, self._base_scores = base, {}
        self.loaded = {card.name: card.root or "" for card in cards if card.parent is not None}
        self.routable &= {*self.loaded, *bases}

    def _fail(self, reason: str) -> None:
        if self.problem is None:
            _log.warning("engine %s: %s", self.engine.url, reason)
        self.problem = reason
        self.routable.clear()
        self.refused.clear()
