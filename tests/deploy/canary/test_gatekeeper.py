"""What people offer is refused before it has a number, not after twenty episodes passed it by."""

from pathlib import Path

import torch

from deploy.canary.gatekeeper import file_gate
from feedback.agent_file import load_agent_file
from feedback.manifest import PROBE, seal
from online_trainer.policy import Policy, load_base
from online_trainer.publish import write_candidate

DESK = load_agent_file(Path("deploy/profiles/desk/agent.yaml"))


def test_an_adapter_without_its_probe_is_refused_and_with_it_may_pass(tmp_path: Path) -> None:
    policy = Policy(load_base(DESK.model.path, dtype=torch.float32), DESK.training.lora, seed=0)
    policy.load({name: value + 0.01 for name, value in policy.state().items()})
    folder = tmp_path / "adapter"
    write_candidate(policy, folder, probe=[[1, 2, 3]], base_version=DESK.base_version)
    assert file_gate(DESK)(folder) == ()
    (folder / PROBE).unlink()
    seal(folder)
    (reason,) = file_gate(DESK)(folder)
    assert "no readable probe.json" in reason
