"""Everything one gateway process is made of, built by hand in `serving/assembly.py` and handed to the routes."""

from collections.abc import Callable
from dataclasses import dataclass

from feedback.agent_file import AgentFile
from feedback.outbox import Outbox
from serving.auth import KeyRing
from serving.edge import EdgeRules
from serving.engines.adapters import Adapters
from serving.engines.splits import News
from serving.episodes import Episodes
from serving.feedback.ratings import Ratings
from serving.loop.agent import Agent
from serving.metrics import Metrics
from serving.opening import Opener
from serving.recorder import Recorder
from serving.responses.stored import Responses
from serving.writer import Writer


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts; routes hold nothing of their own."""

    agent_file: AgentFile
    keys: KeyRing
    agent: Agent
    opener: Opener
    adapters: Adapters
    episodes: Episodes
    recorder: Recorder
    ratings: Ratings
    responses: Responses
    news: News
    outbox: Outbox
    writer: Writer
    metrics: Metrics
    clock: Callable[[], int]
    edge: EdgeRules
    max_in_flight: int
    keep_alive_s: float
