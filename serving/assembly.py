"""Builds one gateway by hand, runs its background work while it is in use, and stops it in the right order.

Nothing outside this process has to be there: engines, Kafka, MLflow and the controller may all come later.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
from sqlalchemy import Engine as Database

from feedback.agent_file import AgentFile, load_agent_file
from feedback.bus import Bus
from feedback.outbox import Drainer, Outbox
from feedback.schemas import TrafficSplit
from feedback.store import open_database
from serving import idempotency
from serving.auth import load_keys
from serving.config import Settings
from serving.edge import EdgeRules
from serving.engines.adapter_cache import AdapterCache, Fetch, fetch_from_mlflow
from serving.engines.adapters import SLOTS, Adapters
from serving.engines.engine import Engine
from serving.engines.replica import Replica
from serving.engines.splits import Listener, News
from serving.episodes import Episodes
from serving.feedback.ratings import Ratings
from serving.gateway import Gateway
from serving.limits import Pace
from serving.loop.agent import Agent
from serving.loop.visible import markers
from serving.metrics import Metrics
from serving.opening import Opener
from serving.recorder import Recorder
from serving.responses.stored import Responses
from serving.writer import Writer
from tools.template import Template, load_template, signatures
from tools.toolbox import Toolbox, ToolLimits

_log = logging.getLogger(__name__)
_ABANDONED_MS = 15 * 60_000  # an open interaction of another gateway on a shared database is dead after this


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def running(
    settings: Settings,
    bus: Bus,
    *,
    clock: Callable[[], int] = wall_clock,
    fetch: Fetch | None = None,
) -> AsyncGenerator[Gateway, None]:
    """A gateway with its writer, drainer, listener and reconciler at work."""
    agent_file = load_agent_file(settings.agent_file)
    database = open_database("serving", home=settings.home, url=settings.database)
    # Shorter than the 5 s after which a vLLM server closes idle connections.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as session:
        gateway, drainer = _build(settings, agent_file, database, session, clock=clock, bus=bus, fetch=fetch)
        listener = Listener(gateway.news, bus, _on_split(gateway), partitions=settings.partitions)
        gateway.writer.start()
        await _recover(gateway, shared=bool(settings.database))
        drainer.start()
        listener.start()
        reconciling = asyncio.create_task(gateway.adapters.run())
        try:
            yield gateway
        finally:
            reconciling.cancel()
            with suppress(asyncio.CancelledError):
                await reconciling
            await asyncio.to_thread(listener.stop)
            await asyncio.to_thread(gateway.writer.stop)
            await asyncio.to_thread(drainer.stop)
            database.dispose()


def _build(
    settings: Settings,
    agent_file: AgentFile,
    database: Database,
    session: aiohttp.ClientSession,
    *,
    clock: Callable[[], int],
    bus: Bus,
    fetch: Fetch | None,
) -> tuple[Gateway, Drainer]:
    template = load_template(agent_file.model.template, agent_file.model.path)
    toolbox = _toolbox(settings, agent_file, template)
    metrics = Metrics(agent_file.agent)
    episodes, outbox, writer = Episodes(database), Outbox(database, settings.outbox_bound), Writer(database)
    news = News(database, outbox, agent_file.agent, agent_file.base_version)
    drainer = Drainer(outbox, bus)
    adapters = _adapters(settings, agent_file, template, session, news=news, metrics=metrics, fetch=fetch)
    gateway = Gateway(
        agent_file=agent_file,
        keys=load_keys(settings.home, settings.api_keys),
        agent=_agent(agent_file, template, toolbox),
        opener=Opener(agent_file, template, toolbox.tools, episodes=episodes, adapters=adapters, clock=clock),
        adapters=adapters,
        episodes=episodes,
        recorder=Recorder(
            agent=agent_file.agent,
            writer=writer,
            outbox=outbox,
            episodes=episodes,
            metrics=metrics,
            clock=clock,
        ),
        ratings=Ratings(agent_file, outbox, clock, pace=Pace(settings.rater_rate, settings.rater_burst)),
        responses=Responses(database),
        news=news,
        outbox=outbox,
        writer=writer,
        metrics=metrics,
        clock=clock,
        edge=EdgeRules(
            max_body=settings.max_body,
            max_headers=settings.max_headers,
            key_rate=settings.key_rate,
            key_burst=settings.key_burst,
            key_in_flight=settings.key_in_flight,
            origins=tuple(settings.origins()),
        ),
        max_in_flight=settings.max_in_flight,
        keep_alive_s=settings.keep_alive_s,
    )
    return gateway, drainer


def _toolbox(settings: Settings, agent_file: AgentFile, template: Template) -> Toolbox:
    limits = ToolLimits(agent_file.limits.tool_s, agent_file.limits.tool_output_tokens, settings.tool_threads)
    return Toolbox.load(agent_file.tools, limits, template.count)


def _agent(agent_file: AgentFile, template: Template, toolbox: Toolbox) -> Agent:
    return Agent(
        template,
        toolbox,
        limits=agent_file.limits,
        signatures=signatures(toolbox.tools),
        hidden=markers(agent_file.model.path),
        max_context=agent_file.model.max_context,
        max_completion=agent_file.model.max_completion,
    )


def _adapters(
    settings: Settings,
    agent_file: AgentFile,
    template: Template,
    session: aiohttp.ClientSession,
    *,
    news: News,
    metrics: Metrics,
    fetch: Fetch | None,
) -> Adapters:
    check_prompt = [*template.start(agent_file.system, []), *template.user("hello"), *template.open_turn()]
    replicas = [
        Replica(
            Engine(url, session, stall_s=settings.stall_s),
            base_version=agent_file.base_version,
            check_prompt=check_prompt,
            slots_needed=SLOTS,
        )
        for url in settings.engine_urls()
    ]
    cache = AdapterCache(settings.home, fetch or fetch_from_mlflow(settings.mlflow))
    return Adapters(replicas, cache, wanted=news.split(), on_change=metrics.watch)


async def _recover(gateway: Gateway, *, shared: bool) -> None:
    """Record what an earlier process left open. On a shared database others may still be at work."""
    now = gateway.clock()
    before = now - _ABANDONED_MS if shared else now + 1
    await gateway.writer.write(lambda conn: idempotency.forget(conn, before=now - idempotency.KEPT_MS))
    found = await gateway.writer.write(lambda conn: gateway.recorder.recover(conn, before=before))
    if found:
        _log.warning("%d interactions of an earlier process recorded as failed", found)


def _on_split(gateway: Gateway) -> Callable[[TrafficSplit], None]:
    """Called in the listener's thread."""
    loop = asyncio.get_running_loop()

    def take(split: TrafficSplit) -> None:
        with suppress(RuntimeError):  # the loop is closed: we are stopping
            loop.call_soon_threadsafe(gateway.adapters.want, split)

    return take
