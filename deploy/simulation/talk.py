"""One user's side of the wire: chat by the official `openai` client, everything else by HTTP.

Invariant: only what a real application would send leaves here: messages, a user id, the episode's id, thumbs.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

from deploy.simulation.ledger import Answer

ATTEMPTS = 6  # of one rating while the server is busy or does not answer
BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
FAILURES = (OpenAIError, httpx.HTTPError, ValueError)


@dataclass(frozen=True)
class Reply:
    text: str
    seen: Answer


@dataclass(frozen=True)
class Sent:
    """What became of a rating."""

    status: int
    attempts: int
    feedback_id: str | None
    failure: str | None


class Talk:
    """The connections of all simulated users to one serving address (`base_url` ends in /v1)."""

    def __init__(
        self, base_url: str, api_key: str, *, model: str, timeout_s: float = 120.0, pause_s: float = 0.5
    ) -> None:
        self._model, self._base, self._pause_s = model, base_url.rstrip("/"), pause_s
        # No retries: a failure that a client can see must be counted.
        self._chat = AsyncOpenAI(base_url=self._base, api_key=api_key, timeout=timeout_s, max_retries=0)
        self._http = httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=30.0)

    async def close(self) -> None:
        await self._chat.close()
        await self._http.aclose()

    async def say(self, messages: list[Any], user: str, *, episode_id: str, streamed: bool) -> Reply:
        """The reply to a conversation; raises one of FAILURES when there is none."""
        began = time.monotonic()
        extra = {"episode_id": episode_id} if episode_id else {}
        raw = await self._chat.chat.completions.with_raw_response.create(
            model=self._model, messages=messages, user=user, stream=streamed, extra_body=extra
        )
        text, response_id = await (_read_stream(raw.parse()) if streamed else _read_whole(raw.parse()))
        seen = Answer(
            response_id,
            raw.headers.get("X-Episode-Id", ""),
            raw.headers.get("X-Adapter-Version", ""),
            streamed,
            round(time.monotonic() - began, 4),
        )
        if not seen.episode_id or not seen.adapter_version:
            raise ValueError("the reply has no X-Episode-Id or no X-Adapter-Version")
        if episode_id and seen.episode_id != episode_id:
            raise ValueError(f"the reply belongs to episode {seen.episode_id}, not {episode_id}")
        return Reply(text, seen)

    async def rate(self, response_id: str, value: bool, *, user: str) -> Sent:
        """Send a thumb, again while the server is not ready to keep it."""
        body = {
            "response_id": response_id,
            "name": "user_rating",
            "value": value,
            "source": {"type": "human", "id": user},
        }
        sent = Sent(0, 0, None, None)
        for attempt in range(1, ATTEMPTS + 1):
            sent = await self._post_rating(body, attempt)
            if sent.status and sent.status not in BUSY:
                return sent
            await asyncio.sleep(min(8.0, self._pause_s * 2**attempt))
        return sent

    async def end(self, episode_id: str) -> bool:
        """Close the episode now; whether the server did."""
        try:
            answer = await self._http.post(f"{self._base}/episodes/{episode_id}/end")
        except httpx.HTTPError:
            return False
        return answer.is_success

    async def _post_rating(self, body: dict[str, Any], attempt: int) -> Sent:
        try:
            answer = await self._http.post(f"{self._base}/feedback", json=body)
        except httpx.HTTPError as failure:
            return Sent(0, attempt, None, type(failure).__name__)
        if not answer.is_success:
            return Sent(answer.status_code, attempt, None, f"HTTP {answer.status_code}")
        return Sent(answer.status_code, attempt, str(answer.json().get("id", "")), None)


async def _read_whole(completion: Any) -> tuple[str, str]:
    return completion.choices[0].message.content or "", completion.id


async def _read_stream(chunks: Any) -> tuple[str, str]:
    """A stream that stops without a finish reason was cut, however much text came before."""
    text, response_id, finished = "", "", False
    async for chunk in chunks:
        response_id = chunk.id or response_id
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finished = finished or choice.finish_reason is not None
    if not finished:
        raise ValueError("the stream ended without a finish reason")
    return text, response_id
