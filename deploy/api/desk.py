"""What every route of deploy's API stands on: the steering, the offers, a reader of the ledger, and who may act.

Handlers are plain functions run in threads: each is one transaction of `Steering`, whose order with the controller's
turns does not matter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Header
from sqlalchemy import Engine

from deploy.canary.offers import Offers
from deploy.canary.status import status_body
from deploy.canary.steering import Steering
from feedback.bus import Partition
from feedback.outbox import Outbox
from feedback.store import reading
from serving.auth import KeyRing
from serving.errors import ApiError


@dataclass(frozen=True)
class Desk:
    """Collaborators that are built elsewhere. `registry_down` is what the registry raises while it is away."""

    steering: Steering
    offers: Offers
    keys: KeyRing
    outbox: Outbox
    registry_down: type[Exception]
    lag: Callable[[], Mapping[Partition, int]]
    is_alive: Callable[[], bool]
    reader: Engine = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", reading(self.steering.engine))

    def admin(self, authorization: Annotated[str | None, Header()] = None) -> str:
        """Who acts: the owner of an admin key. Raises ApiError."""
        key = self.keys.find(authorization)
        if key is None:
            raise ApiError(401, "no valid API key: send Authorization: Bearer …", code="invalid_api_key")
        if not key.may("admin"):
            raise ApiError(403, f"key {key.owner} lacks the scope admin", code="insufficient_scope")
        return key.owner

    def status(self) -> dict[str, Any]:
        """Everything on one page."""
        with self.reader.connect() as conn:
            return status_body(conn, self.steering, lag=self.lag(), spooled=self.outbox.depth())
