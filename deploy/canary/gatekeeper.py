"""The publish gate for folders that people offer: the trainer's own, on this agent's base model. Loads torch at first use."""

from pathlib import Path

from deploy.canary.offers import Gate
from feedback.agent_file import AgentFile
from feedback.probe import read_probe


def file_gate(agent: AgentFile) -> Gate:
    """A gate that knows what an adapter of this agent must hold."""

    def gate(folder: Path) -> tuple[str, ...]:
        from online_trainer.gate import expected_adapter, inspect_adapter

        reasons = inspect_adapter(folder, expected_adapter(agent.model.path, agent.training.lora))
        if not reasons:
            try:
                read_probe(folder)
            except ValueError as error:
                return (f"{error}: serving loads nothing that it cannot hold against its maker's figures",)
        return reasons

    return gate
