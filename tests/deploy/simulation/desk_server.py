"""A chat server on a loopback port whose agent is a teacher: the simulated users' other side, over real HTTP."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deploy.simulation.conduct import Conduct, Teacher
from deploy.simulation.world import Request, Task


@dataclass
class DeskServer:
    """What it answered and saw. `failing` = of how many chat requests one fails; 0 = none."""

    tasks: list[Task]
    manners: Conduct = field(default_factory=Conduct)
    failing: int = 0
    cut_streams: bool = False
    refused_ratings: int = 0  # first tries of ratings answered 503
    bodies: list[dict[str, Any]] = field(default_factory=list)
    ratings: list[dict[str, Any]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    talking: Counter[str] = field(default_factory=Counter)
    most_talking: int = 0
    clashes: int = 0
    on_chat: Callable[[], None] = lambda: None
    _episodes: dict[str, tuple[Teacher, list[Request]]] = field(default_factory=dict)

    async def chat(self, http: HttpRequest) -> Response:
        body = await http.json()
        self.bodies.append(body)
        user = body["user"]
        self.clashes += self.talking[user] > 0
        self.talking[user] += 1
        self.most_talking = max(self.most_talking, sum(self.talking.values()))
        self.on_chat()
        await anyio.sleep(0.002)
        self.talking[user] -= 1
        if self.failing and len(self.bodies) % self.failing == 0:
            return JSONResponse({"error": {"message": "no engine", "type": "server_error"}}, 503)
        episode_id = body.get("episode_id") or f"ep_{uuid4().hex}"
        text = self._answer(episode_id, body["messages"])
        headers = {"X-Episode-Id": episode_id, "X-Adapter-Version": "travel-desk-000000"}
        response_id = f"chatcmpl-{uuid4().hex}"
        if body["stream"]:
            frames = self._frames(response_id, text)
            return StreamingResponse(frames, headers=headers, media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return JSONResponse(
            {"id": response_id, "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]},
            headers=headers,
        )

    async def feedback(self, http: HttpRequest) -> Response:
        body = await http.json()
        if self.refused_ratings:
            self.refused_ratings -= 1
            return JSONResponse({"error": {"message": "spool full"}}, 503)
        self.ratings.append(body)
        return JSONResponse({"id": f"fb_{len(self.ratings)}", "status": "new"}, 202)

    async def end(self, http: HttpRequest) -> Response:
        self.ended.append(http.path_params["episode_id"])
        return JSONResponse({})

    def _answer(self, episode_id: str, messages: list[dict[str, str]]) -> str:
        """The teacher's reply to a request, courtesy to anything else."""
        if episode_id not in self._episodes:
            self._episodes[episode_id] = (Teacher(self.manners, episode_id, random.Random(episode_id)), [])
        teacher, asked = self._episodes[episode_id]
        said, step = messages[-1]["content"], len(asked)
        texts = [*(request.text for request in asked), said]
        for wanted in self.tasks:
            if [request.text for request in wanted.requests[: step + 1]] == texts:
                asked.append(wanted.requests[step])
                reply: str = teacher.answer(asked[-1])[-1]["content"]
                return reply
        return "You are welcome."

    async def _frames(self, response_id: str, text: str) -> AsyncIterator[str]:
        for piece, reason in ((text[:7], None), (text[7:], None), ("", "stop")):
            if reason and self.cut_streams:
                break
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": reason}
            chunk = {"id": response_id, "object": "chat.completion.chunk", "created": 1, "model": "m"}
            yield f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"
        yield "data: [DONE]\n\n"


@asynccontextmanager
async def listening(desk: DeskServer) -> AsyncIterator[str]:
    """The base URL of a desk that serves until the block ends."""
    routes = [
        Route("/v1/chat/completions", desk.chat, methods=["POST"]),
        Route("/v1/feedback", desk.feedback, methods=["POST"]),
        Route("/v1/episodes/{episode_id}/end", desk.end, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(10):
            while not server.started:
                await anyio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
        server.should_exit = True
