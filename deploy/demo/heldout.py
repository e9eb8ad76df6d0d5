"""Held-out success of the start, the head, the champion, and a few heads on the way: the learning curve."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from deploy.demo.children import Children, as_evaluation
from deploy.demo.facts import Facts
from deploy.demo.sizes import Sizes
from deploy.evaluate import Evaluation
from feedback.agent_file import AgentFile
from feedback.schemas import Decision, Update

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
    agent: AgentFile,
    facts: Facts,
    children: Children,
    *,
    sizes: Sizes,
    snapshots: Mapping[str, Path],
    champion: str,
) -> Held:
    """Evaluate every version once; equal adapters are not measured twice. `snapshots` are folders by update id."""
    size = {"tasks": sizes.heldout_tasks, "samples": sizes.samples}
    start, greedy = await _start_figures(agent, children, sizes)
    heads = accepted_heads(facts)
    known: dict[str | None, Evaluation] = {None: start}

    async def of(update: Update | None, name: str) -> Evaluation:
        digest = update.digest if update is not None else None
        if digest not in known:
            assert update is not None
            known[digest] = await children.evaluate(name, snapshots[update.update_id], **size)
        return known[digest]

    newest = heads[-1][1] if heads else None
    trained = next((u for _, u in reversed(heads) if u.version == champion), None)
    head = await of(newest, "head")
    best = await of(trained, "champion")
    curve = [
        (rated, await of(update, f"after-{rated}"))
        for rated, update in spread(heads[:-1], sizes.curve_points)
    ]
    return Held(start, greedy, head, best, [*curve, *([(heads[-1][0], head)] if heads else [])])


def accepted_heads(facts: Facts) -> list[tuple[int, Update]]:
    """Accepted updates in time order, each with the rated episodes used up to it."""
    ordered = sorted(facts.updates.values(), key=lambda update: update.at)
    used = accumulate(update.rated for update in ordered)
    return [
        (rated, update)
        for rated, update in zip(used, ordered, strict=True)
        if update.decision is not Decision.REFUSED and update.digest
    ]


def spread(heads: Sequence[tuple[int, Update]], count: int) -> list[tuple[int, Update]]:
    """At most `count` of them, evenly spaced."""
    if count <= 0 or not heads:
        return []
    step = max(1.0, len(heads) / count)
    return [
        heads[min(len(heads) - 1, int((number + 0.5) * step))] for number in range(min(count, len(heads)))
    ]


async def _start_figures(agent: AgentFile, children: Children, sizes: Sizes) -> tuple[Evaluation, Evaluation]:
    """Of the start: those stored beside the model when they are of these bytes, tasks, samples and seed; else measured."""
    stored = agent.model.path / START_FIGURES
    want = {"tasks": sizes.heldout_tasks, "samples": sizes.samples, "seed": children.seed}
    if stored.exists():
        found = json.loads(stored.read_text())
        if found["digest"] == model_digest(agent) and all(
            found["start"][key] == value for key, value in want.items()
        ):
            return as_evaluation(found["start"]), as_evaluation(found["greedy"])
    start = await children.evaluate("start", None, tasks=want["tasks"], samples=want["samples"])
    greedy = await children.evaluate("start-greedy", None, tasks=want["tasks"], samples=1, temperature=0.0)
    return start, greedy


def model_digest(agent: AgentFile) -> str:
    """SHA-256 over the base model's weight files."""
    digest = sha256()
    for path in sorted(agent.model.path.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def store_start(agent: AgentFile, start: Evaluation, greedy: Evaluation) -> None:
    """Keep the start's figures beside the model, under its digest."""
    record = {"digest": model_digest(agent), "start": asdict(start), "greedy": asdict(greedy)}
    (agent.model.path / START_FIGURES).write_text(json.dumps(record) + "\n")
