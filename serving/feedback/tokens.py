"""Feedback tokens for browsers: signed, short-lived, good for one metric of one target, and for writing only.

A token is signed with the hash of the key that asked for it: nothing more has to be kept, every gateway that knows
the key knows its tokens, and they end with the key.
"""

import hashlib
from dataclasses import asdict, dataclass

from itsdangerous import BadData, URLSafeSerializer

from serving.auth import Key, KeyRing
from serving.errors import ApiError, field_error
from serving.feedback.bodies import FeedbackSource, Given

PREFIX = "fbt_"
_LONGEST = 2048
_SALT = "ratchet.feedback-token.1"


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a token allows. `source` is the person, where the key vouches for the users it names."""

    episode_id: str
    response_id: str | None
    tool_call_id: str | None
    name: str
    source: str | None
    expires_at: int  # ms

    def bound(self, body: Given) -> Given:
        """The body, with what the ticket decides. Raises 403 where the body wants something else."""
        said = {
            "response_id": body.target_response(),
            "episode_id": body.target_episode(),
            "tool_call_id": body.tool_call_id,
            "name": body.metric(),
            "chosen": body.chosen,
            "rejected": body.rejected,
            "id": body.id,
        }
        for field, value in said.items():
            if value is not None and value != asdict(self).get(field):
                message = "this token is for something else"
                raise field_error(field, message, status=403, code="token_mismatch")
        by_reply = self.response_id is not None
        return Given(
            response_id=self.response_id,
            episode_id=None if by_reply else self.episode_id,
            tool_call_id=self.tool_call_id,
            name=self.name,
            value=body.given_value(),
            comment=body.given_comment(),
            correction=body.given_correction(),
            source=FeedbackSource(id=self.source),
            timestamp=body.timestamp,
            metadata=body.metadata,
        )


def mint(key: Key, ticket: Ticket) -> str:
    """The token."""
    return f"{PREFIX}{key.id}.{_signer(key).dumps(list(asdict(ticket).values()))}"


def redeem(ring: KeyRing, token: str, *, now: int) -> tuple[Key, Ticket]:
    """The key that stands behind a token, and what it allows. Raises 401."""
    key_id, _, signed = token.removeprefix(PREFIX).partition(".")
    key = ring.by_id(key_id)
    if not token.startswith(PREFIX) or len(token) > _LONGEST or key is None or not key.may("feedback"):
        raise _unknown()
    try:
        ticket = Ticket(*_signer(key).loads(signed))
    except (BadData, TypeError) as error:
        raise _unknown() from error
    if now >= ticket.expires_at:
        raise ApiError(401, "this token has expired; ask for a new one", code="token_expired")
    return key, ticket


def _signer(key: Key) -> URLSafeSerializer:
    signer = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}
    return URLSafeSerializer(key.digest, salt=_SALT, signer_kwargs=signer)


def _unknown() -> ApiError:
    return ApiError(401, "not a valid feedback token", code="invalid_token")
