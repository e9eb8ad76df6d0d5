"""A part dies at once (kill -9) while people talk: chat goes on, and after the restart every reply is there, once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from deploy.calls import call
from feedback.kafka import KafkaBus
from feedback.schemas import EXPERIENCES, INTERACTIONS, Experience, Interaction, read_episode_record
from tests.end_to_end.conftest import LiveStack
from tests.running import eventually

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.timeout(1200),
    # kafka-python leaves the sockets of refused connections to the collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


class Ledger:
    """What Kafka has of replies and experiences, read again from the beginning by each look."""

    def __init__(self, bus: KafkaBus) -> None:
        self._reader = bus.reader([INTERACTIONS, EXPERIENCES])
        self._reader.seek({})
        self.responses: Counter[str] = Counter()
        self.experiences: dict[str, set[str]] = {}

    def look(self) -> None:
        for record in self._reader.poll(1.0):
            if record.topic == INTERACTIONS:
                said = read_episode_record(record.value)
                if isinstance(said, Interaction):
                    self.responses[said.response_id] += 1
            elif record.value is not None:
                experience = Experience.model_validate_json(record.value)
                if experience.revision == 1:
                    self.experiences.setdefault(experience.episode_id, set()).add(experience.id)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def ledger(live_stack: LiveStack) -> Iterator[Ledger]:
    bus = live_stack.bus()
    ledger = Ledger(bus)
    yield ledger
    ledger.close()
    bus.close()


def talk(stack: LiveStack) -> tuple[str, str]:
    """One conversation of one message, ended at once; its episode and response ids."""
    address = stack.address("SERVING_PORT")
    reply = call(
        "POST",
        f"{address}/v1/chat/completions",
        key=stack.key,
        body={"model": "travel-desk", "messages": [{"role": "user", "content": "A flight to Rome, please."}]},
        timeout_s=300,  # a shared machine may be busy; a hang would still fail
    )
    call("POST", f"{address}/v1/episodes/{reply['episode_id']}/end", key=stack.key)
    return reply["episode_id"], reply["id"]


@pytest.mark.parametrize("part", ["trainer", "mlflow", "kafka"])
def test_chat_goes_on_and_nothing_is_lost_or_doubled(
    live_stack: LiveStack, ledger: Ledger, part: str
) -> None:
    talked = [talk(live_stack)]
    killed = live_stack.pid_of(part)

    os.kill(killed, signal.SIGKILL)
    talked += [talk(live_stack) for _ in range(3)]

    def is_back() -> bool:
        state = live_stack.part(part)
        return bool(state["well"]) and state["pid"] != killed

    assert eventually(is_back, within_s=180), live_stack.logs()
    talked.append(talk(live_stack))

    def is_complete() -> bool:
        ledger.look()
        return all(
            ledger.responses[response] and episode in ledger.experiences for episode, response in talked
        )

    assert eventually(is_complete, within_s=180), live_stack.logs()
    assert all(len(ledger.experiences[episode]) == 1 for episode, _ in talked)
