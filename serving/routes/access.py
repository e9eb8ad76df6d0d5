"""Who is calling: the key of a request and what its headers say."""

from fastapi import Request

from feedback.schemas import Arm
from serving.auth import Key, KeyRing
from serving.bodies import ChatRequest
from serving.errors import ApiError
from serving.feedback.tokens import PREFIX
from serving.opening import Caller

_LONGEST = 256
_ARMS: dict[str, Arm] = {"champion": "champion", "candidate": "candidate", "holdout": "holdout"}


def require(request: Request, keys: KeyRing, scope: str) -> Key:
    """The key, with this scope. Raises 401 or 403."""
    key = keys.find(request.headers.get("authorization"))
    if key is None:
        raise ApiError(401, "a valid API key is needed: Authorization: Bearer …", code="invalid_api_key")
    if not key.may(scope):
        raise ApiError(403, f"this key lacks the scope {scope!r}", code="missing_scope")
    return key


def token_of(request: Request) -> str | None:
    """The feedback token that a browser sends: as `?token=`, or where a key would stand."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip().startswith(PREFIX):
        return secret.strip()
    return request.query_params.get("token")


def caller(request: Request, key: Key, body: ChatRequest) -> Caller:
    """The caller of a chat request."""
    return Caller(key, _alias(request, body), _named_user(request, body), _arm(request, key))


def _alias(request: Request, body: ChatRequest) -> str | None:
    """The client's name for its conversation, with its kind (conventions 5.1)."""
    session = (body.metadata or {}).get("session_id")
    names = (
        ("id", body.episode_id),
        ("id", request.headers.get("x-episode-id")),
        ("session", session if isinstance(session, str) else None),
        ("openwebui", request.headers.get("x-openwebui-chat-id")),
    )
    for kind, name in names:
        if name:
            if len(name) > _LONGEST:
                raise ApiError(
                    400, f"an episode's name has at most {_LONGEST} characters", param="episode_id"
                )
            return f"{kind}:{name}"
    return None


def _named_user(request: Request, body: ChatRequest) -> str | None:
    return body.named_user() or request.headers.get("x-openwebui-user-id") or None


def _arm(request: Request, key: Key) -> Arm | None:
    wished = request.headers.get("x-adapter-arm")
    if wished is None:
        return None
    if not key.may("admin"):
        raise ApiError(
            403,
            "X-Adapter-Arm needs a key with the scope 'admin'",
            code="missing_scope",
            param="X-Adapter-Arm",
        )
    if wished not in _ARMS:
        raise ApiError(
            400, f"X-Adapter-Arm: one of {', '.join(_ARMS)}", code="no_such_arm", param="X-Adapter-Arm"
        )
    return _ARMS[wished]
