"""Small, valid messages for tests; every argument that a test is about can be given."""

from typing import Any

from feedback.schemas import (
    ComparedReplies,
    EpisodeEnd,
    Feedback,
    Interaction,
    ToolCall,
    ToolOutcome,
    Turn,
    Withdrawal,
)

AGENT = "travel-desk"
IDLE_MS = 15_000
SECOND = 1_000


def turn(text: str = "Total 136.", **changes: Any) -> Turn:
    """One exact completion of three ids."""
    fields: dict[str, Any] = {
        "adapter_version": "travel-desk-000000",
        "prompt_ids": (1, 2),
        "token_ids": (3, 4, 5),
        "logprobs": (-0.1, -0.2, -0.3),
        "raw_text": text,
        "shown_text": text,
        "stop_reason": "stop",
    }
    return Turn.model_validate(fields | changes)


def call_turn(*calls: ToolCall, results: tuple[ToolOutcome, ...] = (), **changes: Any) -> Turn:
    """A completion that only calls tools."""
    return turn("<tool_call>", shown_text="", tool_calls=calls, tool_results=results, **changes)


def interaction(number: int = 0, *, episode: str = "ep_1", **changes: Any) -> Interaction:
    """The `number`-th reply of an episode; it ends at 1000 * (number + 1) ms."""
    fields: dict[str, Any] = {
        "agent": AGENT,
        "episode_id": episode,
        "response_id": f"{episode}-r{number}",
        "index": number,
        "key_owner": "owner",
        "user": "user-hash",
        "arm": "champion",
        "propensity": 1.0,
        "generation": 0,
        "adapter_version": "travel-desk-000000",
        "turns": (turn(),),
        "user_text": "How about Rome?",
        "status": "completed",
        "latency_ms": 100.0,
        "started_at": SECOND * number,
        "ended_at": SECOND * (number + 1),
    }
    return Interaction.model_validate(fields | changes)


def rating(value: bool = True, *, response: str | None = "ep_1-r0", **changes: Any) -> Feedback:
    """A thumb."""
    fields: dict[str, Any] = {
        "id": "fb_1",
        "revision": 1,
        "op": "create",
        "agent": AGENT,
        "episode_id": "ep_1",
        "response_id": response,
        "name": "user_rating",
        "value": value,
        "score": float(bool(value)),
        "key_owner": "owner",
        "rater": "user-hash",
        "given_at": 0,
        "received_at": 0,
    }
    return Feedback.model_validate(fields | changes)


def compared(
    chosen: str, rejected: str, *, home: str | None = None, same: bool = True, **changes: Any
) -> Feedback:
    """A choice between two replies of `ep_1`, or of the episodes that their ids begin with."""
    pair = ComparedReplies(
        chosen=chosen,
        rejected=rejected,
        chosen_episode=chosen.rpartition("-")[0],
        rejected_episode=rejected.rpartition("-")[0],
        same_question=same,
    )
    said: dict[str, Any] = {"name": "comparison", "comparison": pair, "value": None, "score": None}
    return rating(response=home or max(chosen, rejected), **(said | changes))


def correction(text: str | None = "Total 136.", *, response: str = "ep_1-r0", **changes: Any) -> Feedback:
    """What a reply should have said."""
    said: dict[str, Any] = {"name": "demonstration", "value": text, "correction": text, "score": None}
    return rating(response=response, **(said | changes))


def episode_end(at: int, *, episode: str = "ep_1") -> EpisodeEnd:
    return EpisodeEnd(agent=AGENT, episode_id=episode, ended_at=at)


def withdrawal(at: int, *, episode: str = "ep_1") -> Withdrawal:
    return Withdrawal(agent=AGENT, episode_id=episode, withdrawn_at=at)
