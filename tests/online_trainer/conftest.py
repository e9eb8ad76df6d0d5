"""One tiny model for all tests of this folder."""

from pathlib import Path

import pytest
import torch

from feedback.agent_file import AgentFile
from online_trainer.policy import Policy
from tests.online_trainer import tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two cores are shared; more threads make a tiny model slower."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def agent(tiny_model: Path) -> AgentFile:
    return tiny.agent_file(tiny_model)


@pytest.fixture
def policy(agent: AgentFile) -> Policy:
    return tiny.new_policy(agent)
