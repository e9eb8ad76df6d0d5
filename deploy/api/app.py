"""Deploy's own HTTP application: the verbs on canaries, what is live and why, numbers. All but health and numbers needs an
admin key.
"""

from fastapi import FastAPI, Response

from deploy.api.canaries import canary_routes
from deploy.api.desk import Desk
from deploy.api.record import record_routes
from deploy.canary.steering import Unknown
from deploy.canary.trial import Illegal
from serving.errors import ApiError, install


def create_app(desk: Desk) -> FastAPI:
    """The application over collaborators that are built elsewhere."""
    app = FastAPI(title="Ratchet deploy", version="1")
    install(app)
    app.include_router(canary_routes(desk))
    app.include_router(record_routes(desk))

    @app.exception_handler(Unknown)
    def unknown(request: object, error: Exception) -> Response:
        return ApiError(404, f"there is no {error}", code="not_found").response()

    @app.exception_handler(Illegal)
    def illegal(request: object, error: Exception) -> Response:
        return ApiError(409, str(error), code="illegal_transition").response()

    return app
