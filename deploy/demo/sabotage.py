"""A process that makes the demo's harmful adapter from the champion and what users said to it.

Run as `python -m deploy.demo.sabotage`: the model it loads leaves with it.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.demo.facts import experiences
from deploy.evaluate import Version, conduct_of
from feedback.agent_file import load_agent_file
from feedback.kafka import KafkaBus

EPISODES = 48
TASKS = 24


def main(
    agent_file: Annotated[Path, typer.Option("--agent", help="agent file")],
    kafka: Annotated[str, typer.Option(help="host:port of the broker that holds the run")],
    out: Annotated[Path, typer.Option(help="where the adapter folder is made; OUT.json says how bad it is")],
    adapter: Annotated[Path | None, typer.Option(help="the champion's folder; none = the start")] = None,
    seed: int = 0,
) -> None:
    """Train away from the champion, without the trust region, until it fails its users."""
    import torch

    from online_trainer.gate import expected_adapter
    from online_trainer.policy import Policy, load_base, read_adapter
    from online_trainer.probe import probe_prompts
    from online_trainer.sabotage import Conduct, sabotage
    from tools.parse import Call
    from tools.template import load_template

    agent = load_agent_file(agent_file)
    policy = Policy(load_base(agent.model.path, dtype=torch.float32), agent.training.lora, seed=seed)
    if adapter is not None:
        policy.load(read_adapter(adapter))
    bus = KafkaBus(kafka, client_id="sabotage")
    seen = [e for e in experiences(bus).values() if e.turns and not e.withdrawn][-EPISODES:]
    bus.close()
    template = load_template(agent.model.template, agent.model.path)
    spelled_call = template.assistant("", [Call.of("any", {"of": "them"})])

    def measure(trained: Policy) -> Conduct:
        found = conduct_of(agent, trained.base_with_adapter(), Version("sabotage"), tasks=TASKS, samples=1)
        mean = sum(found.success) / len(found.success)
        return Conduct(success=mean, malformed=found.faulty_share)

    _, conduct = sabotage(
        policy,
        seen,
        out,
        measure=measure,
        opens_call=spelled_call[len(template.open_turn())],
        expected=expected_adapter(agent.model.path, agent.training.lora),
        parent=adapter,
        probe=probe_prompts(agent),
        base_version=agent.base_version,
        seed=seed,
    )
    made = {"success": conduct.success, "faulty_share": conduct.malformed}
    out.with_suffix(".json").write_text(json.dumps(made))


if __name__ == "__main__":
    typer.run(main)
