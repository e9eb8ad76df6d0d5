"""From a request to an interaction that can run: which episode, which version, which ids.

Stored ids are extended; text is rendered only where nothing of ours is stored. A history that differs from what was
answered starts at the longest stored prefix and says so in its flags.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.tools import BaseTool
from uuid_utils import uuid4

from feedback.agent_file import AgentFile
from feedback.people import person
from feedback.schemas import Arm, Sampling, TrafficSplit
from serving import history
from serving.auth import Key
from serving.bodies import ChatRequest
from serving.engines.adapters import Adapters
from serving.engines.router import Assignment, NoSuchArm, assign, override, resume
from serving.episodes import Episode, Episodes, Opening, new_episode_id
from serving.errors import ApiError
from serving.finding import BRANCH, Finder, Found
from serving.loop.ask import Ask
from serving.loop.client_tools import ToolChoice, chosen, declared, fingerprint
from serving.loop.grammar import one_call
from serving.loop.sampling import choose, reseeded
from serving.loop.window import fit
from tools.template import Template, signatures

WINDOW = "window"
_log = logging.getLogger(__name__)
_LOAD_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what the headers say."""

    key: Key
    alias: str | None = None  # the client's name for the episode, with its kind
    named: str | None = None  # the user it names
    arm: Arm | None = None

    @property
    def user(self) -> str | None:
        """The person, where the key vouches for the users it names."""
        vouched = self.named and self.key.may("end-users")
        return person(self.key.owner, self.named) if self.named and vouched else None


@dataclass(frozen=True, slots=True)
class Opened:
    """Everything that running and recording need."""

    opening: Opening
    ask: Ask
    sampling: Sampling
    begun: float  # monotonic


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the kind of request adds: how its response ids begin, the response it says it comes after, and its episode."""

    prefix: str
    after: str | None = None
    inside: str | None = None


CHAT = Wanted("chatcmpl-")


class Opener:
    """One per gateway."""

    def __init__(
        self,
        agent_file: AgentFile,
        template: Template,
        tools: Sequence[BaseTool],
        *,
        episodes: Episodes,
        adapters: Adapters,
        clock: Callable[[], int],
    ) -> None:
        self._file, self._template, self._tools = agent_file, template, tuple(tools)
        self._episodes, self._adapters, self._clock = episodes, adapters, clock
        self._names = {tool.name for tool in tools}
        self._finder = Finder(episodes, clock=clock, idle_ms=agent_file.episode.idle * 1000)

    async def open(self, caller: Caller, body: ChatRequest, *, wanted: Wanted = CHAT) -> Opened:
        """Raises ApiError; nothing is stored before it returns."""
        begun = time.monotonic()
        if body.model != self._file.agent:
            raise ApiError(
                404, f"no model {body.model!r} is served here", code="model_not_found", param="model"
            )
        client_tools = declared(body.tools, taken=self._names)
        choice = chosen(body.tool_choice, [tool.name for tool in client_tools])
        sampling = choose(body, choice, self._file.sampling)
        said = history.read_messages(body.messages)
        for name, size in history.broken_calls(said):
            _log.warning(
                "a call of %.64r in the history has unreadable arguments (%d characters)", name, size
            )
        start = history.root(
            caller.key.owner,
            person(caller.key.owner, caller.named or ""),
            self._file.agent,
            self._file.system,
            fingerprint(body.tools) if client_tools else "",
        )
        marks = history.threads(start, said)
        found = await self._finder.find(
            caller.key.owner, caller.alias, said, marks=marks, after=wanted.after, inside=wanted.inside
        )
        assignment = await self._assignment(caller, found)
        ids, starts, window = self._ids(said, found, client_tools, body)
        opening = self._opening(
            caller, found, assignment, said=said, thread=marks[-1], starts=starts, prefix=wanted.prefix
        )
        opening.flags = (*found.flags, *window)
        ask = Ask(
            opening.episode.episode_id,
            opening.assignment.version,
            ids,
            params=sampling.params,
            max_tokens=body.longest(),
            stops=body.stops(),
            client_tools=signatures(client_tools),
            choice=sampling.choice,
            parallel=body.parallel_tool_calls is not False,
            top_logprobs=body.alternatives(),
            answer_params=sampling.answer_params,
            call_params=self._call_params(client_tools, sampling.choice),
        )
        return Opened(opening, ask, sampling.recorded, begun)

    def sibling(self, opened: Opened, index: int) -> Opened:
        """Another answer to the same request: a branch of its own, with its own response id and its own seed."""
        first = opened.opening
        prefix = first.response_id.partition("-")[0] + "-"
        opening = replace(
            first,
            response_id=f"{prefix}{uuid4().hex}",
            index=first.episode.next_index,
            aliases=(),
            beside=first.response_id,
            flags=tuple(dict.fromkeys((*first.flags, BRANCH))),
        )
        first.episode.next_index += 1
        ask = replace(opened.ask, params=reseeded(opened.ask.params, index))
        return replace(opened, opening=opening, ask=ask)

    def _call_params(self, tools: Sequence[BaseTool], choice: ToolChoice) -> Mapping[str, Any] | None:
        if not choice.forced:
            return None
        return one_call(self._template.name, [tool for tool in tools if choice.may_call(tool.name)])

    async def _assignment(self, caller: Caller, found: Found) -> tuple[str, Assignment]:
        """(episode id, the assignment of this interaction); its version is routable."""
        split = self._adapters.split
        if split is None:
            raise ApiError(503, "the agent is starting", code="starting", retry_after_s=2)
        episode_id = found.episode.episode_id if found.episode else new_episode_id()
        try:
            assignment = _assigned(split, caller, found.episode, episode_id)
        except NoSuchArm as error:
            raise ApiError(400, str(error), code="no_such_arm", param="X-Adapter-Arm") from error
        if not await self._adapters.routable(assignment.version, within_s=_LOAD_WAIT_S):
            raise ApiError(503, "no engine can answer now", code="engine_unavailable", retry_after_s=2)
        return episode_id, assignment

    def _ids(
        self, said: Sequence[history.Said], found: Found, client_tools: list[BaseTool], body: ChatRequest
    ) -> tuple[list[int], tuple[int, ...], tuple[str, ...]]:
        """(prompt, where interactions begin in it, flags)."""
        template = self._template
        if found.parent is not None:
            ids = list(found.parent.ids)
            starts = [*found.parent.starts, len(ids)]
            ids += history.render(template, said[found.at + 1 :])
        else:
            ids, starts = self._from_text(said, client_tools)
        ids += template.open_turn()
        wanted = body.longest() or self._file.model.max_completion
        room = self._file.model.max_context - min(wanted, self._file.model.max_completion)
        fitted = fit(ids, starts, keep=self._file.context.window_turns, budget=room)
        if fitted is None:
            limit = f"{len(ids)} tokens do not fit into a context of {self._file.model.max_context}"
            raise ApiError(400, limit, code="context_length_exceeded", param="messages")
        return fitted[0], tuple(fitted[1]), (WINDOW,) if len(fitted[0]) < len(ids) else ()

    def _from_text(
        self, said: Sequence[history.Said], client_tools: list[BaseTool]
    ) -> tuple[list[int], list[int]]:
        """Nothing of ours is stored: all of it is rendered, and every user message begins an interaction."""
        ids = self._template.start(self._file.system, [*self._tools, *client_tools])
        starts = [len(ids)]
        for index, message in enumerate(said):
            if message.role == "user" and index > 0:
                starts.append(len(ids))
            ids += history.render(self._template, [message])
        return ids, starts

    def _opening(
        self,
        caller: Caller,
        found: Found,
        assigned: tuple[str, Assignment],
        *,
        said: Sequence[history.Said],
        thread: str,
        starts: tuple[int, ...],
        prefix: str,
    ) -> Opening:
        """Nothing waits from here on, so that two requests cannot take one index."""
        now, owner = self._clock(), caller.key.owner
        episode_id, assignment = assigned
        episode = found.episode or self._episodes.start(
            owner, caller.user, assignment, now, episode_id=episode_id
        )
        aliases: tuple[str, ...] = ()
        if found.episode is None and caller.alias is not None:
            self._episodes.name(owner, caller.alias, episode_id)
            aliases = (caller.alias,)
        parent = found.parent
        opening = Opening(
            response_id=f"{prefix}{uuid4().hex}",
            episode=episode,
            index=episode.next_index,
            parent=parent.response_id if parent and parent.episode_id == episode_id else None,
            user=caller.user,
            assignment=assignment,
            user_text=history.newest_user_text(said),
            started_at=now,
            thread=thread,
            starts=starts,
            aliases=aliases,
        )
        episode.next_index += 1
        episode.newest = opening.response_id
        return opening


def _assigned(split: TrafficSplit, caller: Caller, episode: Episode | None, episode_id: str) -> Assignment:
    if episode is None:
        return assign(split, episode_id, user=caller.user, arm=caller.arm)
    if caller.arm is not None:
        return override(episode.assignment, split, caller.arm)
    return resume(episode.assignment, split)
