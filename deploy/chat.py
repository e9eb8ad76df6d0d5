"""`ratchet chat`: talk to the agent in the terminal and rate what it says, through the official client.

It uses nothing that any OpenAI client could not use: the extensions are read from the reply.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import APIConnectionError, APIStatusError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console

from deploy.calls import CallError, call

_HELP = "/good and /bad rate the last answer, /new starts another conversation, /quit leaves"
_RATINGS = {"/good": True, "/bad": False}


@dataclass
class Conversation:
    """What has been said so far."""

    messages: list[ChatCompletionMessageParam] = field(default_factory=list)
    episode_id: str | None = None
    response_id: str | None = None


class Chat:
    """One terminal's conversation with one agent."""

    def __init__(
        self, client: OpenAI, console: Console, *, model: str, address: str, as_json: bool = False
    ) -> None:
        self._client = client
        self._console = console
        self._model = model
        self._address = address
        self._as_json = as_json
        self._conversation = Conversation()

    def run(self, read_line: Callable[[], str]) -> None:
        """Until /quit or the end of input."""
        self._tell({"agent": self._model}, f"{self._model} at {self._address}. {_HELP}.")
        while True:
            try:
                line = read_line().strip()
            except (EOFError, KeyboardInterrupt):
                return
            if line == "/quit":
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """A message, a rating or a command."""
        if line in _RATINGS:
            self._rate(_RATINGS[line])
        elif line == "/new":
            self._conversation = Conversation()
            self._tell({"new": True}, "a new conversation", style="dim")
        elif line.startswith("/"):
            self._tell({"error": f"unknown command {line}"}, _HELP, style="yellow")
        else:
            self._say(line)

    def _say(self, text: str) -> None:
        conversation = self._conversation
        asked: list[ChatCompletionMessageParam] = [*conversation.messages, {"role": "user", "content": text}]
        named = {"episode_id": conversation.episode_id} if conversation.episode_id else {}
        try:
            reply = self._client.chat.completions.create(model=self._model, messages=asked, extra_body=named)
        except APIStatusError as error:
            self._refuse(f"{error.status_code} {error.message}")
            return
        except APIConnectionError:
            self._refuse(f"nothing answers at {self._address}; is the stack up?")
            return
        extensions: dict[str, Any] = reply.model_extra or {}
        answer = reply.choices[0].message.content or ""
        conversation.messages = [*asked, {"role": "assistant", "content": answer}]
        conversation.episode_id = extensions.get("episode_id", conversation.episode_id)
        conversation.response_id = reply.id
        self._show(answer, extensions.get("agent") or {})

    def _show(self, answer: str, agent: dict[str, Any]) -> None:
        ids = {"response_id": self._conversation.response_id, "episode_id": self._conversation.episode_id}
        if self._as_json:
            self._tell({"answer": answer, **ids, "agent": agent}, "")
            return
        for tool in agent.get("tools") or ():
            self._tell({}, f"  {tool['name']}({tool['arguments']}) → {tool['result']}", style="dim")
        self._tell({}, answer, style="cyan")
        facts = (agent.get("adapter"), agent.get("arm"), ids["episode_id"])
        self._tell({}, "  ".join(str(fact) for fact in facts if fact), style="dim")

    def _rate(self, value: bool) -> None:
        if self._conversation.response_id is None:
            self._refuse("nothing to rate yet")
            return
        try:
            stored = rate(
                self._address,
                self._client.api_key,
                response_id=self._conversation.response_id,
                name="user_rating",
                value=value,
            )
        except CallError as error:
            self._refuse(str(error))
            return
        self._tell({"rated": stored}, f"rated: {stored.get('status', 'stored')}", style="dim")

    def _refuse(self, said: str) -> None:
        self._tell({"error": said}, said, style="red")

    def _tell(self, value: dict[str, Any], text: str, *, style: str = "") -> None:
        """What the agent and its tools said is never taken for markup."""
        said = json.dumps(value) if self._as_json else text
        self._console.print(
            said, style="" if self._as_json else style, markup=False, highlight=False, soft_wrap=True
        )


def rate(
    address: str, key: str, *, response_id: str, name: str, value: bool | float, comment: str = ""
) -> Any:
    """Send one rating; the server's reply. Raises CallError."""
    body: dict[str, Any] = {"response_id": response_id, "name": name, "value": value}
    if comment:
        body["comment"] = comment
    return call("POST", f"{address}/v1/feedback", key=key, body=body)
