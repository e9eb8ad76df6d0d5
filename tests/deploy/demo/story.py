"""One small run, told from both sides: two episodes, three replies, two thumbs. Tests change one thing and look."""

from typing import Any

from deploy.demo.clients import Clients
from feedback.bus import MemoryBus
from feedback.schemas import (
    CREDITS,
    EXPERIENCES,
    FEEDBACK,
    INTERACTIONS,
    TRAFFIC_SPLITS,
    UPDATES,
    AdapterRef,
    Credit,
    Decision,
    Experience,
    Message,
    TrafficSplit,
    TurnCredit,
    Update,
    Verdict,
    VersionVerdict,
)
from tests.feedback.building import AGENT, interaction, rating

BASE, FIRST = f"{AGENT}-000000", f"{AGENT}-000001"


def experience(episode: str, **changes: Any) -> Experience:
    fields: dict[str, Any] = {
        "id": f"x-{episode}",
        "revision": 1,
        "agent": AGENT,
        "episode_id": episode,
        "key_owner": "owner",
        "rater": "user-hash",
        "arm": "champion",
        "propensity": 0.0,
        "generation": 0,
        "adapter_version": BASE,
        "turns": (),
        "user_texts": ("How about Rome?",),
        "ratings": 1,
        "outcome": 1,
        "outcome_source": "thumb",
        "trainable": True,
        "started_at": 0,
        "closed_at": 5_000,
        "cutoff_at": 6_000,
    }
    return Experience.model_validate(fields | changes)


def messages() -> list[tuple[str, str, Message]]:
    """What the product sent, in order."""
    ref = AdapterRef(version=FIRST, uri="models:/m-1", digest="sha256:1")
    update = Update(
        update_id="up_1",
        agent=AGENT,
        parent=BASE,
        reference=BASE,
        decision=Decision.ACCEPTED,
        digest="sha256:1",
        measures={"k3_old": 0.0004, "kl_ref": 0.001},
        episodes=2,
        rated=2,
        at=7_000,
    )
    credit = Credit(
        agent=AGENT,
        episode_id="ep_1",
        revision=1,
        update_id="up_1",
        at=7_000,
        turns=(
            TurnCredit(response_id="ep_1-r0", turn=0, advantage=0.5),
            TurnCredit(response_id="ep_1-r1", turn=0, unused="abandoned"),
        ),
    )
    split = TrafficSplit(
        agent=AGENT,
        generation=2,
        champion=ref,
        verdicts=(VersionVerdict(version=FIRST, verdict=Verdict.PROMOTED, reason="better"),),
        at=8_000,
    )
    return [
        (INTERACTIONS, "ep_1", interaction(0)),
        (INTERACTIONS, "ep_1", interaction(1)),
        (INTERACTIONS, "ep_2", interaction(0, episode="ep_2")),
        (FEEDBACK, "ep_1", rating(True, response="ep_1-r1")),
        (FEEDBACK, "ep_2", rating(False, response="ep_2-r0", id="fb_2", episode_id="ep_2")),
        (EXPERIENCES, "ep_1", experience("ep_1")),
        (
            EXPERIENCES,
            "ep_2",
            experience("ep_2", arm="holdout", trainable=False, reason="holdout", outcome=0),
        ),
        (UPDATES, AGENT, update),
        (UPDATES, AGENT, update.model_copy(update={"version": FIRST, "uri": "models:/m-1"})),
        (CREDITS, "ep_1", credit),
        (TRAFFIC_SPLITS, AGENT, split),
    ]


def bus_of(sent: list[tuple[str, str, Message]]) -> MemoryBus:
    bus = MemoryBus()
    for topic, key, message in sent:
        bus.append(topic, key, message.to_bytes())
    return bus


def clients() -> Clients:
    """What the users know of the same run."""

    def answer(response: str, episode: str) -> dict[str, Any]:
        return {"response_id": response, "episode_id": episode, "adapter_version": BASE}

    def episode(number: int, answers: list[dict[str, Any]], *, success: bool) -> dict[str, Any]:
        return {
            "kind": "episode", "episode_id": f"ep_{number}", "answers": answers, "success": success,
            "failure": None, "began_at": 0, "over_at": 2_000 * number,
        }  # fmt: skip

    def thumb(number: int, response: str, *, value: bool) -> dict[str, Any]:
        return {
            "kind": "rating", "feedback_id": f"fb_{number}", "response_id": response, "value": value,
            "status": 202, "flipped": number == 2,
        }  # fmt: skip

    return Clients(
        episodes=[
            episode(1, [answer("ep_1-r0", "ep_1"), answer("ep_1-r1", "ep_1")], success=True),
            episode(2, [answer("ep_2-r0", "ep_2")], success=True),
        ],
        ratings=[thumb(1, "ep_1-r1", value=True), thumb(2, "ep_2-r0", value=False)],
    )
