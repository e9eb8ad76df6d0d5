"""From a request to an interaction that can run: which episode, which version, which ids.

Stored ids are extended; text is rendered only where nothing of ours is stored. A history that differs from what was
answered starts at the longest stored prefix and says so in its flags.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from langchain_core.tools import BaseTool
from uuid_utils import uuid4

from feedback.agent_file import AgentFile
from feedback.schemas import Arm, Sampling, TrafficSplit
from serving import history
from serving.adapters import Adapters
from serving.agent import Ask
from serving.auth import Key, person
from serving.bodies import ChatRequest
from serving.client_tools import declared, fingerprint
from serving.context.window import fit
from serving.episodes import Answer, Episode, Episodes, Opening, new_episode_id
from serving.errors import ApiError
from serving.router import Assignment, NoSuchArm, assign, override, resume
from serving.sampling import choose
from tools.template import Template, signatures

AMBIGUOUS, BRANCH, REWRITTEN, CONTINUED, WINDOW = "ambiguous", "branch", "rewritten", "continued", "window"
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
class _Found:
    """Where the request goes on."""

    episode: Episode | None
    parent: Answer | None
    at: int  # index of the parent's message in the history
    flags: tuple[str, ...] = ()


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
        self._idle_ms = agent_file.episode.idle * 1000

    async def open(self, caller: Caller, body: ChatRequest) -> Opened:
        """Raises ApiError; nothing is stored before it returns."""
        begun = time.monotonic()
        if body.model != self._file.agent:
            raise ApiError(
                404, f"no model {body.model!r} is served here", code="model_not_found", param="model"
            )
        if (body.n or 1) > 1:
            raise ApiError(400, "n: only 1 is supported", code="unsupported_value", param="n")
        client_tools = declared(body.tools, body.tool_choice, taken=self._names)
        sampling, params = choose(body, self._file.sampling)
        said = history.read_messages(body.messages)
        start = history.root(
            caller.key.owner,
            person(caller.key.owner, caller.named or ""),
            self._file.agent,
            self._file.system,
            fingerprint(body.tools) if client_tools else "",
        )
        marks = history.threads(start, said)
        found = await self._find(caller, said, marks)
        assignment = await self._assignment(caller, found)
        ids, starts, window = self._ids(said, found, client_tools, body)
        opening = self._opening(caller, found, assignment, said=said, thread=marks[-1], starts=starts)
        opening.flags = (*found.flags, *window)
        ask = Ask(
            opening.episode.episode_id,
            opening.assignment.version,
            ids,
            params=params,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stops=body.stops(),
            client_tools=signatures(client_tools),
        )
        return Opened(opening, ask, sampling, begun)

    async def _find(self, caller: Caller, said: Sequence[history.Said], marks: Sequence[str]) -> _Found:
        """The episode by its name, else by the history; then the stored answer that the history goes on from."""
        answered = [index for index, message in enumerate(said) if message.role == "assistant"]
        stored = await self._episodes.answers([marks[index] for index in answered]) if answered else {}
        points = [(index, stored[marks[index]]) for index in reversed(answered) if marks[index] in stored]
        if caller.alias is not None:
            return await self._by_name(caller, caller.alias, answered, points)
        return await self._by_history(caller, answered, points)

    async def _by_name(
        self, caller: Caller, alias: str, answered: list[int], points: list[tuple[int, list[Answer]]]
    ) -> _Found:
        episode = await self._episodes.by_alias(caller.key.owner, alias)
        episode = episode or self._episodes.named(caller.key.owner, alias)
        if episode is not None and not episode.is_open(self._clock(), self._idle_ms):
            parent, at = _newest(points, None)
            return _Found(None, parent, at, (CONTINUED, *_rewritten(parent, at, answered)))
        if episode is None:
            return _Found(None, None, -1, _rewritten(None, -1, answered))
        parent, at = _newest(points, episode.episode_id)
        return _Found(episode, parent, at, (*_branch(episode, parent), *_rewritten(parent, at, answered)))

    async def _by_history(
        self, caller: Caller, answered: list[int], points: list[tuple[int, list[Answer]]]
    ) -> _Found:
        """The first point, from the newest, at which exactly one of this person's open episodes was answered so."""
        now, owner = self._clock(), caller.key.owner
        for at, answers in points:
            ids = dict.fromkeys(answer.episode_id for answer in answers)
            episodes = [await self._episodes.by_id(owner, episode_id) for episode_id in ids]
            running = [each for each in episodes if each is not None and each.is_open(now, self._idle_ms)]
            if len(running) > 1:
                return _Found(None, None, -1, (AMBIGUOUS, REWRITTEN))
            if running:
                mine = next(each for each in reversed(answers) if each.episode_id == running[0].episode_id)
                flags = (*_branch(running[0], mine), *_rewritten(mine, at, answered))
                return _Found(running[0], mine, at, flags)
        parent, at = _newest(points, None)
        continued = (CONTINUED,) if parent is not None else ()
        return _Found(None, parent, at, (*continued, *_rewritten(parent, at, answered)))

    async def _assignment(self, caller: Caller, found: _Found) -> tuple[str, Assignment]:
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
        self, said: Sequence[history.Said], found: _Found, client_tools: list[BaseTool], body: ChatRequest
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
        wanted = body.max_completion_tokens or body.max_tokens or self._file.model.max_completion
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
        found: _Found,
        assigned: tuple[str, Assignment],
        *,
        said: Sequence[history.Said],
        thread: str,
        starts: tuple[int, ...],
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
            response_id=f"chatcmpl-{uuid4().hex}",
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


def _newest(points: list[tuple[int, list[Answer]]], episode_id: str | None) -> tuple[Answer | None, int]:
    """The stored answer with the longest history, of this episode or (None) of any."""
    for at, answers in points:
        for answer in reversed(answers):
            if episode_id in (None, answer.episode_id):
                return answer, at
    return None, -1


def _branch(episode: Episode, parent: Answer | None) -> tuple[str, ...]:
    """Not the episode's newest answer: a regeneration or another way on."""
    return () if parent is not None and parent.response_id == episode.newest else (BRANCH,)


def _rewritten(parent: Answer | None, at: int, answered: list[int]) -> tuple[str, ...]:
    """The history holds answers that are not ours as stored."""
    return (REWRITTEN,) if any(index > at for index in answered) else ()
