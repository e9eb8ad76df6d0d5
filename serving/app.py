"""The HTTP application over one gateway: routes, error shape, edge. It builds nothing and starts nothing."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from serving import errors
from serving.edge import Edge
from serving.gateway import Gateway
from serving.routes import chat, episodes, feedback, health, models


def create_app(gateway: Gateway, *, max_body: int = 1024 * 1024) -> ASGIApp:
    """The ASGI application."""
    app = FastAPI(title="Ratchet", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    errors.install(app)
    for routes in (chat, models, feedback, episodes, health):
        app.include_router(routes.router(gateway))
    return Edge(app, max_body=max_body)
