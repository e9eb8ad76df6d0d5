"""The demo's hand on the canaries: the same HTTP verbs that a person has."""

import asyncio
from pathlib import Path
from typing import Any

from deploy.calls import CallError, call, offer


class Steering:
    """Deploy's API at `address`, with an admin key."""

    def __init__(self, address: str, key: str) -> None:
        self._address, self._key = address, key

    async def status(self) -> dict[str, Any]:
        """Everything on one page; {} while nothing answers (the controller may be restarting)."""
        try:
            return await self._call("GET", "/v1/status")
        except CallError:
            return {}

    async def offer(self, adapter: Path) -> dict[str, Any]:
        """Offer an adapter folder by the code of `ratchet canary offer PATH`. Raises CallError."""
        offered: dict[str, Any] = await asyncio.to_thread(offer, str(adapter), self._address, key=self._key)
        return offered

    async def promote(self, canary_id: str) -> dict[str, Any]:
        """Make a candidate champion by hand, whatever the evidence says. Raises CallError."""
        return await self._call("POST", f"/v1/canaries/{canary_id}/promote", {"full": True})

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = await asyncio.to_thread(
            call, method, self._address + path, key=self._key, body=body, timeout_s=20.0
        )
        return answer
