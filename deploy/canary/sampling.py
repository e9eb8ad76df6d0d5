"""How much of the recent traffic was sampled in a way that cannot be trained, and the warning when it is most of it.

Pure but for the note that holds the last episodes. The holdout and evaluations are never trained: they do not count.
"""

from sqlalchemy import Connection

from deploy.canary import ledger
from feedback.schemas import Experience

SAMPLING = "sampling"
RECENT = 200
"""Episodes looked back on."""
LEAST_TURNS = 20
"""Fewer turns than this and nothing is said."""
WARNS_ABOVE = 0.5


def note_sampling(conn: Connection, experience: Experience) -> None:
    """Count an episode's turns and those that no policy may learn from, once: at its first revision."""
    if experience.revision > 1 or experience.arm == "holdout" or "evaluation" in experience.flags:
        return
    reasons = [turn.sampling.untrainable_reason() for turn in experience.turns]
    unfit = [reason for reason in reasons if reason is not None]
    row = [len(reasons), len(unfit), unfit[0] if unfit else ""]
    ledger.write_note(conn, SAMPLING, [*(ledger.read_note(conn, SAMPLING) or []), row][-RECENT:])


def sampling_warnings(conn: Connection) -> list[str]:
    """One line when more than half of the recent turns cannot be trained because of how their clients sampled them."""
    rows = ledger.read_note(conn, SAMPLING) or []
    turns, unfit = (sum(row[column] for row in rows) for column in (0, 1))
    if turns < LEAST_TURNS or unfit <= WARNS_ABOVE * turns:
        return []
    reasons = sorted({row[2] for row in rows if row[2]})
    return [
        f"{unfit / turns:.0%} of the last {turns} turns cannot be trained: clients set {', '.join(reasons)}; "
        "`sampling: {client: ignore}` in the agent file decides for them"
    ]
