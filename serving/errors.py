"""Errors as OpenAI clients know them: `{"error": {message, type, param, code}}`, all four keys, always."""

import logging
import math
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

_log = logging.getLogger(__name__)

_TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_exceeded",
}


class ApiError(Exception):
    """Ends a request with this status and body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON value."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, where waiting helps."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}

    def response(self) -> Response:
        """The whole reply."""
        return json_response(self.body(), status=self.status, headers=self.headers())


def field_error(
    field: str, message: str, *, status: int = 422, code: str = "invalid_value", of: str = ""
) -> ApiError:
    """A field is wrong; `of` is what holds it, like `feedback[3]`."""
    where = f"{of}.{field}" if of else field
    return ApiError(status, f"{where}: {message}", code=code, param=where)


def storage_fault() -> ApiError:
    """The database does not take or give anything now."""
    return ApiError(503, "nothing can be stored now", code="storage", retry_after_s=2)


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON by orjson: a lone surrogate or NaN never gets out."""
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Give every error this shape, the framework's own included."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(SQLAlchemyError, _storage)
    app.add_exception_handler(Exception, _bug)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    found = ApiError(error.status_code, str(error.detail), code=codes.get(error.status_code))
    response = found.response()
    response.headers.update(error.headers or {})
    return response


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", code="invalid_json").response()
    where = ".".join(str(step) for step in first["loc"][1:]) or None
    said = first["msg"].removeprefix("Value error, ")
    message = f"{where}: {said}" if where else f"the body: {said}"
    return ApiError(400, message, code="invalid_value", param=where).response()


async def _storage(request: Request, error: Exception) -> Response:
    _log.error("the database failed", exc_info=error)
    return storage_fault().response()


async def _bug(request: Request, error: Exception) -> Response:
    """The traceback is in the log (Starlette raises it again); the client learns nothing about it."""
    return ApiError(500, "the server failed; the request id is in the headers", code="internal").response()
