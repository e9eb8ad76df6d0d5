"""Work that must be stored before its reply: done by the writer, and where it cannot be, said as a 503 that may be tried again."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from feedback.outbox import OutboxFull
from serving.auth import Key
from serving.errors import ApiError, storage_fault
from serving.feedback.bodies import Given
from serving.feedback.ratings import Stored
from serving.gateway import Gateway

T = TypeVar("T")


async def durable(gateway: Gateway, job: Callable[[Connection], T]) -> T:
    """Run a job in the writer; it is committed when this returns. 503 where nothing can be stored."""
    try:
        return await gateway.writer.write(job)
    except OutboxFull as error:
        raise ApiError(503, "the spool is full; try later", code="spool_full", retry_after_s=5) from error
    except SQLAlchemyError as error:
        raise storage_fault() from error


async def store_one(gateway: Gateway, key: Key, body: Given) -> Stored:
    """Store one piece of feedback and count it."""
    stored = await durable(gateway, lambda conn: gateway.ratings.submit(conn, key, body))
    count(gateway, stored)
    return stored


def count(gateway: Gateway, stored: Stored) -> None:
    """What was stored, by metric and arm: never by whom or of what."""
    reply, metrics = stored.reply, gateway.metrics
    new = stored.change != "replayed"
    status = reply["status"] if new else "replayed"
    metrics.feedback.labels(reply["name"], reply["arm"], status, stored.source).inc()
    if new:
        metrics.feedback_delay.labels(reply["name"]).observe(stored.delay_s)
    if new and reply["score"] is not None:
        metrics.feedback_score.labels(reply["name"], reply["arm"]).observe(reply["score"])
