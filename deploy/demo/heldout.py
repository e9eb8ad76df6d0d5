"""Held-out success of the start, the head, the champion, and a few heads on the way: the learning curve.

`python -m deploy.demo.heldout AGENT_FILE` measures the start and keeps its figures beside the model.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import typer

from deploy.demo.children import Children, as_evaluation
from deploy.demo.facts import Facts
from deploy.demo.sizes import Sizes
from deploy.demo.tail import UpdateTail
from deploy.evaluate import Evaluation, Version, evaluate
from feedback.agent_file import AgentFile, load_agent_file
from feedback.schemas import AdapterRef, Decision, Update, Verdict

TAKEN_BACK = frozenset({Verdict.ROLLED_BACK, Verdict.ABORTED})
START_FIGURES = "heldout-start.json"


@dataclass(frozen=True)
class Held:
    """What was measured. `curve` holds (rated episodes so far, evaluation) of heads on the way, newest last."""

    start: Evaluation
    greedy: Evaluation
    head: Evaluation
    champion: Evaluation
    curve: Sequence[tuple[int, Evaluation]]


async def measure(
    agent: AgentFile, facts: Facts, children: Children, *, sizes: Sizes, adapters: UpdateTail
) -> Held:
    """Evaluate every version once; the same bytes are not measured twice. Raises ChildFailed and AdapterMissing."""
    champion = facts.splits[-1].champion
    head = standing_head(facts) or champion
    needed = {
        each.digest: adapters.find(each.digest, uri=each.uri) for each in (champion, head) if each.digest
    }
    copies = adapters.copies()
    heads = [(rated, update) for rated, update in accepted_heads(facts) if update.digest in copies]
    marked = spread(heads[:-1], sizes.curve_points) + heads[-1:]
    folders = needed | {u.digest: copies[u.digest] for _, u in marked if u.digest}
    known = stored_start(agent, sizes)
    wanted = {"start": "", "greedy": "greedy"} if not known else {}
    found = known | await children.evaluate(
        wanted | {digest: str(folder) for digest, folder in folders.items()},
        tasks=sizes.heldout_tasks,
        samples=sizes.samples,
    )

    def of(measured: Update | AdapterRef) -> Evaluation:
        return found[measured.digest or "start"]

    return Held(
        start=found["start"],
        greedy=found["greedy"],
        head=of(head),
        champion=of(champion),
        curve=[(rated, of(update)) for rated, update in marked],
    )


def standing_head(facts: Facts) -> Update | None:
    """The newest accepted update that the trainer goes on from; None when that is the champion itself.

    A version of its own that is taken back takes what came before it along, and what was in flight when that was told.
    """
    fallen = taken_back(facts)
    rejected = set(fallen)
    for update in sorted(facts.updates.values(), key=lambda update: update.at):
        if update.version and update.parent in rejected:
            rejected.add(update.version)
    returned_at = max(fallen.values(), default=0)
    standing = [
        update
        for _, update in accepted_heads(facts)
        if update.at > returned_at and update.parent not in rejected
    ]
    return standing[-1] if standing else None


def accepted_heads(facts: Facts) -> list[tuple[int, Update]]:
    """Accepted updates in time order, each with the rated episodes used up to it."""
    ordered = sorted(facts.updates.values(), key=lambda update: update.at)
    used = accumulate(update.rated for update in ordered)
    return [
        (rated, update)
        for rated, update in zip(used, ordered, strict=True)
        if update.decision is not Decision.REFUSED and update.digest
    ]


def taken_back(facts: Facts) -> dict[str, int]:
    """When (ms) each version of the trainer's own was first told to be rolled back or aborted."""
    own = {update.version for update in facts.updates.values() if update.version}
    told: dict[str, int] = {}
    for split in facts.splits:  # each repeats the verdicts before it
        for known in split.verdicts:
            if known.verdict in TAKEN_BACK and known.version in own:
                told.setdefault(known.version, split.at)
    return told


def spread(heads: Sequence[tuple[int, Update]], count: int) -> list[tuple[int, Update]]:
    """At most `count` of them, evenly spaced."""
    if count <= 0 or not heads:
        return []
    step = max(1.0, len(heads) / count)
    return [
        heads[min(len(heads) - 1, int((number + 0.5) * step))] for number in range(min(count, len(heads)))
    ]


def stored_start(agent: AgentFile, sizes: Sizes) -> dict[str, Evaluation]:
    """The start's figures kept beside the model, cut to the tasks asked for; {} when they are not of these bytes."""
    stored = agent.model.path / START_FIGURES
    if not stored.exists():
        return {}
    record = json.loads(stored.read_text())
    kept = {name: as_evaluation(record[name]) for name in ("start", "greedy")}
    if record["digest"] != model_digest(agent) or kept["start"].samples != sizes.samples:
        return {}
    if any(evaluation.tasks < sizes.heldout_tasks for evaluation in kept.values()):
        return {}
    return {
        name: replace(
            evaluation, tasks=sizes.heldout_tasks, success=evaluation.success[: sizes.heldout_tasks]
        )
        for name, evaluation in kept.items()
    }


def model_digest(agent: AgentFile) -> str:
    """SHA-256 over the base model's weight files."""
    digest = sha256()
    for path in sorted(agent.model.path.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def store_start(agent_file: Path, tasks: int = 200) -> None:
    """Measure the base model, sampled and greedy, and keep the figures beside it under its digest."""
    agent = load_agent_file(agent_file)
    versions = [Version("start"), Version("greedy", temperature=0.0)]
    found = {name: asdict(one) for name, one in evaluate(agent, versions, tasks=tasks, samples=1)}
    record = {"digest": model_digest(agent), **found}
    (agent.model.path / START_FIGURES).write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    typer.run(store_start)
