"""What a person on call is shown, from the ledger alone: what is live, what is tried, on what evidence, and what happened."""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from deploy.canary import history, ledger, units
from deploy.canary.anchor import from_json
from deploy.canary.judging import ANCHOR
from deploy.canary.sampling import sampling_warnings
from deploy.canary.steering import SPENT, Steering
from deploy.canary.trial import Phase, evidence
from feedback.bus import Partition


def canary_body(row: ledger.CanaryRow, *, full: bool = True) -> dict[str, Any]:
    """One canary. `evidence` and the rest of the trial are None until it begins."""
    body: dict[str, Any] = {
        "id": row.canary_id,
        "object": "canary",
        "version": row.version,
        "phase": row.phase,
        "verdict": row.verdict,
        "reason": row.reason,
        "offered_by": row.actor,
        "first_generation": row.first_generation,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }
    if not full:
        return body
    trial = row.state if row.phase is not Phase.PENDING else None
    return body | {
        "step": None if trial is None else trial.step,
        "steps": [] if trial is None else [step.model_dump(mode="json") for step in trial.settings.steps],
        "share": None if trial is None else trial.share,
        "paused_by": None if trial is None else trial.paused_by,
        "evidence": None if trial is None else evidence(trial),
    }


def version_body(conn: Connection, row: Any) -> dict[str, Any]:
    """One version with how it fared."""
    champion = history.champions(conn)[-1].version
    return {
        "version": row.version,
        "object": "version",
        "digest": row.digest,
        "uri": row.uri,
        "parent": row.parent,
        "source": row.source,
        "refused": row.refused,
        "champion": row.version == champion,
        "offered_at": row.at,
    }


def status_body(
    conn: Connection, steering: Steering, *, lag: Mapping[Partition, int], spooled: int
) -> dict[str, Any]:
    """Everything on one page."""
    split = history.newest_split(conn)
    active = ledger.active_canary(conn)
    stack = history.champions(conn)
    spent = ledger.read_note(conn, SPENT) or 0.0
    return {
        "object": "status",
        "agent": steering.agent.agent,
        "at": steering.clock(),
        "champion": stack[-1].version if stack else None,
        "previous_champion": stack[-2].version if len(stack) > 1 else None,
        "share": 0.0 if split is None else split.share,
        "split": None if split is None else split.model_dump(mode="json"),
        "canary": None if active is None else canary_body(active),
        "pending": [canary_body(row, full=False) for row in ledger.list_canaries(conn, Phase.PENDING)],
        "recent": [canary_body(row, full=False) for row in ledger.list_canaries(conn, limit=10)],
        "verdicts": history.count_verdicts(conn),
        "units": units.totals(conn),
        "budget": {"margin": steering.agent.canary.margin, "spent": spent},
        "anchor": _anchor(conn, steering),
        "lag": {f"{topic}-{partition}": left for (topic, partition), left in lag.items()},
        "spooled": spooled,
        "warnings": sampling_warnings(conn),
        "events": history.list_events(conn, limit=20),
    }


def _anchor(conn: Connection, steering: Steering) -> dict[str, Any] | None:
    stored, stack = ledger.read_note(conn, ANCHOR), history.champions(conn)
    if stored is None or not stack or stored["reign"] != stack[-1].seq:
        return None
    state = from_json(stored)
    return {
        "version": steering.agent.base_version,
        "people": {"holdout": state.worse.n0, "live": state.worse.n1},
        "worse_log10_e": float(state.worse.log_e) / math.log(10),
        "better_log10_e": float(state.better.log_e) / math.log(10),
    }
