"""`clients.jsonl`: what only the clients can know, one JSON object a line.

Invariant: lines are appended whole and never changed; nothing in them is ever sent to the product.

`{"kind": "episode", ...}` once an episode is over for its user, `{"kind": "rating", ...}` once a rating was
accepted or given up. Times are milliseconds since 1970.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from deploy.simulation.travel import Fault


@dataclass
class Answer:
    """One reply as its client saw it; `wrong` is the truth about it, None for a reply to thanks or complaints."""

    response_id: str
    episode_id: str
    adapter_version: str
    streamed: bool
    latency_s: float
    wrong: tuple[Fault, ...] | None = None
    quotes_total: bool = False


@dataclass
class EpisodeLine:
    """One user's episode. `success` is None when it was cut short by a failure or by the end of the run."""

    user: str
    task_seed: int
    index: int
    began_at: int
    requests: int
    episode_id: str = ""
    answers: list[Answer] = field(default_factory=list)
    complaints: int = 0
    thanks: int = 0
    success: bool | None = None
    rated: bool = False
    ended: bool = False  # closed by the client; others just go idle
    failure: str | None = None
    over_at: int = 0


@dataclass
class RatingLine:
    """One thumb. `truth` is what an honest user would have said; `last` = on the last answer with a total."""

    user: str
    index: int
    episode_id: str
    response_id: str
    value: bool
    truth: bool
    last: bool
    status: int = 0  # HTTP status of the last attempt; 0 = no answer
    attempts: int = 0
    feedback_id: str | None = None
    failure: str | None = None
    sent_at: int = 0

    @property
    def flipped(self) -> bool:
        return self.value != self.truth

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


class Ledger:
    """Appends lines; one writer a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def episode(self, line: EpisodeLine) -> None:
        self._write({"kind": "episode", **asdict(line)})

    def rating(self, line: RatingLine) -> None:
        self._write({"kind": "rating", **asdict(line), "flipped": line.flipped})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
