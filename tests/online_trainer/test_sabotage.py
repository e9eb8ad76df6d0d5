"""A sabotaged adapter is bad in conduct and honest as a file."""

from pathlib import Path

import pytest
import torch

from feedback.agent_file import AgentFile
from feedback.schemas import Experience
from online_trainer.gate import expected_adapter, inspect_adapter
from online_trainer.policy import Policy
from online_trainer.sabotage import Conduct, SabotageFailed, mangled, sabotage
from tests.online_trainer import tiny

CALL = 12


def calls() -> list[Experience]:
    """Episodes whose turn is `CALL 20 21 END`."""
    return [
        tiny.experience(
            number,
            [
                tiny.priced(
                    [tiny.SYSTEM, tiny.USER, 5 + number % 5, tiny.OPEN], [CALL, 20, 21, tiny.END], [-1.0] * 4
                )
            ],
            thumb=1,
        )
        for number in range(16)
    ]


def test_every_call_is_mangled_after_its_opening_id() -> None:
    rows = mangled(calls(), opens_call=CALL, max_length=256)
    assert len(rows) == 16
    assert rows[0].ids[-4:] == (CALL, CALL, CALL, tiny.END)
    assert rows[0].trained == 4


def test_it_goes_on_until_conduct_is_bad_and_passes_the_gate(
    policy: Policy, agent: AgentFile, tmp_path: Path
) -> None:
    expected = expected_adapter(agent.model.path, agent.training.lora)
    start = tiny.good_share(policy)

    def measure(trained: Policy) -> Conduct:
        """Success = the choice is not yet mangled; the tiny world's stand-in for held-out tasks."""
        says_call = 1.0 - _not_call(trained)
        return Conduct(success=1.0 - says_call, malformed=says_call)

    digest, conduct = sabotage(
        policy,
        calls(),
        tmp_path / "bad",
        measure=measure,
        opens_call=CALL,
        expected=expected,
        parent=None,
        probe=[[1, 2, 3]],
        base_version=tiny.BASE,
        rate=1e-2,
        rounds=20,
    )
    assert conduct.success < 0.05 <= start
    assert digest.startswith("sha256:")
    assert inspect_adapter(tmp_path / "bad", expected) == ()


def _not_call(policy: Policy) -> float:
    prompt = torch.tensor([[tiny.SYSTEM, tiny.USER, 5, tiny.OPEN]])
    with torch.no_grad():
        logits_V = policy.base_with_adapter()(prompt).logits[0, -1]
    return 1.0 - float(torch.softmax(logits_V, -1)[CALL])


def test_what_does_not_become_bad_is_not_handed_out(policy: Policy, agent: AgentFile, tmp_path: Path) -> None:
    with pytest.raises(SabotageFailed, match="still success"):
        sabotage(
            policy,
            calls(),
            tmp_path / "bad",
            measure=lambda _: Conduct(0.5, 0.0),
            opens_call=CALL,
            expected=expected_adapter(agent.model.path, agent.training.lora),
            parent=None,
            probe=[[1, 2, 3]],
            base_version=tiny.BASE,
            rounds=1,
            steps=1,
        )
    assert not (tmp_path / "bad").exists()
