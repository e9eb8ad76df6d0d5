"""Writes interactions down, off the reply's path: the episode's state and the outgoing message in one transaction.

Only `open` is on the path: a response id is durable before its first byte leaves. Every opened interaction is
recorded exactly once, also when the process dies between the two (`recover`); one of an episode that was withdrawn
meanwhile is not sent.
"""

import logging
from array import array
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy import Connection, select, update

from feedback.fit import fit_interaction
from feedback.outbox import Outbox, OutboxFull
from feedback.schemas import INTERACTIONS as TOPIC
from feedback.schemas import Interaction, Sampling, Status
from serving import history
from serving.episode_rows import write_closing, write_opening
from serving.episodes import OPEN, Answer, Episodes, Opening
from serving.loop.transcript import Transcript
from serving.metrics import Metrics
from serving.tables import INTERACTIONS
from serving.writer import Writer

_log = logging.getLogger(__name__)
CRASHED = "crashed"


class Recorder:
    """One per gateway."""

    def __init__(
        self,
        *,
        agent: str,
        writer: Writer,
        outbox: Outbox,
        episodes: Episodes,
        metrics: Metrics,
        clock: Callable[[], int],
    ) -> None:
        self._agent, self._writer, self._outbox = agent, writer, outbox
        self._episodes, self._metrics, self._clock = episodes, metrics, clock

    def open(self, opening: Opening) -> "Future[None]":
        """Begin to make the response id durable; wait for it before the first byte."""
        opening.episode.running += 1
        return self._writer.submit(lambda conn: write_opening(conn, opening))

    def close(self, opening: Opening, transcript: Transcript, sampling: Sampling, *, seconds: float) -> None:
        """Record how it ended. Returns at once; the next interaction of the episode already finds it."""
        now = self._clock()
        opening.episode.running -= 1
        opening.episode.last_at = max(opening.episode.last_at, now)
        answer, thread = self._extendable(opening, transcript)
        if answer is not None and thread is not None and not opening.episode.withdrawn:
            self._episodes.remember(thread, answer)

        def job(conn: Connection) -> None:
            message = self._message(opening, transcript, sampling, seconds=seconds, ended_at=now)
            kept = write_closing(
                conn,
                opening,
                status=transcript.status,
                ended_at=now,
                delivered=transcript.delivered,
                call_ids=[call.id for draft in transcript.drafts for call in draft.tool_calls],
                answer=answer,
                thread=thread,
            )
            if kept:
                self._send(conn, message)

        self._writer.submit(job).add_done_callback(_log_failure)

    def recover(self, conn: Connection, *, before: int) -> int:
        """Record what a process that was killed had opened; returns how many."""
        query = select(INTERACTIONS).where(INTERACTIONS.c.status == OPEN, INTERACTIONS.c.started_at < before)
        rows = conn.execute(query).all()
        for row in rows:
            message = Interaction(
                agent=self._agent,
                episode_id=row.episode_id,
                response_id=row.response_id,
                index=row.index,
                parent_response_id=row.parent,
                key_owner=row.key_owner,
                user=row.user,
                arm=row.arm,
                propensity=row.propensity,
                generation=row.generation,
                canary_id=row.canary_id,
                adapter_version=row.version,
                turns=(),
                user_text=row.user_text,
                status=Status.FAILED,
                flags=(CRASHED,),
                started_at=row.started_at,
                ended_at=row.started_at,
            )
            ended = {"status": str(Status.FAILED), "ended_at": row.started_at}
            where = INTERACTIONS.c.response_id == row.response_id
            conn.execute(update(INTERACTIONS).where(where).values(**ended))
            self._send(conn, message)
        return len(rows)

    def _extendable(self, opening: Opening, transcript: Transcript) -> tuple[Answer | None, str | None]:
        if not transcript.extendable or not transcript.drafts:
            return None, None
        calls = [(call.name, call.arguments) for call in transcript.client_calls]
        thread = history.follow(opening.thread, history.answer(transcript.delivered, calls))
        episode_id = opening.episode.episode_id
        return Answer(opening.response_id, episode_id, array("i", transcript.ids()), opening.starts), thread

    def _message(
        self, opening: Opening, transcript: Transcript, sampling: Sampling, *, seconds: float, ended_at: int
    ) -> Interaction:
        turns = transcript.turns()
        for turn in turns:
            if turn.flaw is not None:
                self._metrics.turns_flawed.labels(turn.flaw).inc()
        assignment, episode = opening.assignment, opening.episode
        return Interaction(
            agent=self._agent,
            episode_id=episode.episode_id,
            response_id=opening.response_id,
            index=opening.index,
            parent_response_id=opening.parent,
            key_owner=episode.key_owner,
            user=opening.user,
            arm=assignment.arm,
            propensity=assignment.propensity,
            generation=assignment.generation,
            canary_id=assignment.canary_id,
            adapter_version=assignment.version,
            turns=turns,
            user_text=opening.user_text,
            status=transcript.status,
            flags=tuple(dict.fromkeys((*assignment.flags, *opening.flags, *transcript.flags))),
            usage=transcript.usage(),
            sampling=sampling,
            latency_ms=seconds * 1000,
            started_at=opening.started_at,
            ended_at=ended_at,
        )

    def _send(self, conn: Connection, message: Interaction) -> None:
        """Into the outbox; a full spool costs the record, never the chat."""
        try:
            self._outbox.put(conn, TOPIC, message.episode_id, fit_interaction(message), message.ended_at)
        except OutboxFull as error:
            self._metrics.recording_lost.labels(TOPIC).inc()
            _log.error("interaction %s not recorded: %s", message.response_id, error)


def _log_failure(future: "Future[None]") -> None:
    if (error := future.exception()) is not None:
        _log.error("an interaction could not be recorded: %s", type(error).__name__)
