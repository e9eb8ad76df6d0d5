"""Is it alive, can it answer, what does it count. No key needed: nothing here tells about users or content."""

from fastapi import APIRouter, Response

from serving.errors import json_response
from serving.gateway import Gateway


def router(gateway: Gateway) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/healthz", response_model=None)
    async def healthz() -> Response:
        """The process answers."""
        return json_response({"status": "ok"})

    @routes.get("/readyz", response_model=None)
    async def readyz() -> Response:
        """Chat requests can be answered; how full the spool is, and what is wrong with the bus's topics."""
        problem = gateway.adapters.ready()
        spool = {"waiting": gateway.outbox.depth(), "bound": gateway.outbox.bound}
        split = gateway.adapters.split
        value = {
            "status": "ready" if problem is None else "not ready",
            "problem": problem,
            "bus": gateway.news.problem,
            "spool": spool,
            "generation": split.generation if split else None,
            "engines": [
                {"url": replica.engine.url, "problem": replica.problem, "versions": sorted(replica.routable)}
                for replica in gateway.adapters.replicas
            ],
        }
        return json_response(value, status=200 if problem is None else 503)

    @routes.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Prometheus."""
        gateway.metrics.outbox_depth.set(gateway.outbox.depth())
        return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4")

    return routes
