"""The HTTP application over one gateway: routes, error shape, edge. It builds nothing and starts nothing."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from serving import errors
from serving.edge import Edge
from serving.gateway import Gateway
from serving.routes import chat, episodes, feedback, health, models, responses, tensorzero, tokens


def create_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application."""
    app = FastAPI(title="Ratchet", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    errors.install(app)
    for routes in (chat, responses, models, tokens, feedback, tensorzero, episodes, health):
        app.include_router(routes.router(gateway))
    inner: ASGIApp = app
    if gateway.edge.origins:
        inner = CORSMiddleware(
            app,
            allow_origins=gateway.edge.origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
            max_age=600,
        )
    return Edge(
        inner,
        gateway.edge,
        gateway.keys,
        refused=lambda reason: gateway.metrics.refused.labels(reason).inc(),
    )
