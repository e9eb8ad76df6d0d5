"""Messages are frozen, strict when written, tolerant when read, and say what is wrong with what is not one."""

import json
import math

import pytest
from pydantic import ValidationError

from feedback.schemas import (
    TOPICS,
    AdapterRef,
    Decision,
    Experience,
    Feedback,
    Interaction,
    Sampling,
    TrafficSplit,
    Turn,
    Unreadable,
    Update,
    canonical,
    read_episode_record,
    turn_flaw,
    version_name,
    version_number,
)
from tests.feedback.building import episode_end, interaction, rating, turn, withdrawal

MESSAGES = [interaction(), rating(), episode_end(1), withdrawal(1)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_reads_back_as_it_was_written(message: Interaction) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message
    assert message.to_bytes() == message.model_copy().to_bytes()


def test_the_interactions_topic_holds_three_kinds() -> None:
    for message in (interaction(), episode_end(1), withdrawal(1)):
        assert read_episode_record(message.to_bytes()) == message


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        interaction().index = 3


def test_unknown_fields_are_refused_when_written_and_ignored_when_read() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        rating(surprise=1)
    newer = rating().to_bytes().replace(b'{"schema_version":1', b'{"schema_version":1,"surprise":{"a":1}')
    assert Feedback.from_bytes(newer) == rating()
    nested = interaction().to_bytes().replace(b'"raw_text"', b'"surprise":2,"raw_text"')
    assert read_episode_record(nested) == interaction()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"{", "JSON"),
        (b"\xff", "value"),
        (rating().to_bytes().replace(b'"schema_version":1', b'"schema_version":99'), "schema_version"),
        (rating().to_bytes().replace(b'"revision":1', b'"revision":0'), "revision"),
        (rating().to_bytes().replace(b'"score":1.0', b'"score":1.0000001'), "score"),
        (rating().to_bytes().replace(b'"score":1.0', b'"score":-1'), "score"),
        (rating().to_bytes().replace(b'"score":1.0', b'"score":NaN'), "score"),
        (rating().to_bytes().replace(b'"score":1.0', b'"score":1e309'), "score"),
        (rating().to_bytes().replace(b'"op":"create"', b'"op":"merge"'), "op"),
    ],
)
def test_what_is_not_a_message_says_which_field_is_wrong(value: bytes | None, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        Feedback.from_bytes(value)


def test_the_reason_does_not_repeat_the_content() -> None:
    secret = rating(comment="my secret").to_bytes().replace(b'"name":"user_rating"', b'"name":["my secret"]')
    with pytest.raises(Unreadable) as caught:
        Feedback.from_bytes(secret)
    assert "secret" not in str(caught.value)


def test_zero_and_false_survive_the_wire() -> None:
    down = Feedback.from_bytes(rating(False).to_bytes())
    assert (down.value, down.score) == (False, 0.0)
    missing = Feedback.from_bytes(rating(score=None).to_bytes())
    assert missing.score is None


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"token_ids": (), "logprobs": ()}, "no_tokens"),
        ({"logprobs": (-0.1,)}, "length_mismatch"),
        ({"shown_text": "Total 137."}, "text_mismatch"),
    ],
)
def test_a_turn_is_exact_or_says_why_not(changes: dict[str, object], flaw: str) -> None:
    with pytest.raises(ValidationError, match=flaw):
        turn(**changes)
    assert turn(**changes, flaw=flaw).flaw == flaw


def test_what_was_shown_is_a_prefix_of_what_was_sampled() -> None:
    assert turn_flaw((1,), (-0.1,), "Total 136.", "Total 1") is None
    assert turn_flaw((1,), (-math.inf,), "a", "a") == "non_finite_logprob"
    assert turn_flaw((1,), (math.nan,), "a", "a") == "non_finite_logprob"


def test_logprobs_that_are_not_numbers_never_enter() -> None:
    with pytest.raises(ValidationError):
        Turn.model_validate({**turn().model_dump(), "logprobs": (math.nan, -0.1, -0.2), "flaw": "x"})


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(), None),
        (Sampling(temperature=2.0), None),
        (Sampling(temperature=0.0), "temperature"),
        (Sampling(temperature=2.1), "temperature"),
        (Sampling(top_p=0.99), "top_p"),
        (Sampling(top_k=5), "top_k"),
        (Sampling(top_k=0), None),
        (Sampling(other=("logit_bias", "grammar")), "logit_bias"),
    ],
)
def test_only_plain_temperature_sampling_is_trained(sampling: Sampling, reason: str | None) -> None:
    assert sampling.untrainable_reason() == reason


def test_a_split_that_gives_traffic_to_nobody_is_refused() -> None:
    with pytest.raises(ValidationError, match="candidate"):
        TrafficSplit(
            agent="a", generation=1, champion=AdapterRef(version="a-000000"), share=0.2, candidate=None, at=1
        )


def test_version_names_round_trip_and_strangers_are_refused() -> None:
    assert version_number(version_name("travel-desk", 42)) == 42
    for stranger in ("travel-desk", "travel-desk-42", "42", "travel-desk-0000042x"):
        with pytest.raises(ValueError, match="version name"):
            version_number(stranger)


@pytest.mark.parametrize(
    "stranger",
    ["v7", "a-42", "A-000001", "a-000001\n", "a-\u0661\u0661\u0661\u0661\u0661\u0661", "a-000001x"],
)
def test_a_split_or_an_update_that_names_a_stranger_is_unreadable(stranger: str) -> None:
    """It would be a ValueError wherever the number is asked for, at every start again."""
    split = TrafficSplit(agent="a", generation=1, champion=AdapterRef(version="a-000001"), at=1)
    update = Update(
        update_id="u",
        agent="a",
        version="a-000001",
        parent="a-000000",
        reference="a-000000",
        decision=Decision.ACCEPTED,
        at=1,
    )
    for message in (split, update):
        fields = json.loads(message.to_bytes())
        named = fields["champion"] if message is split else fields
        named["version"] = stranger
        with pytest.raises(Unreadable, match="version"):
            type(message).from_bytes(json.dumps(fields).encode())


def test_canonical_bytes_do_not_depend_on_order() -> None:
    assert (
        canonical({"b": 1, "a": [0.5, None]})
        == canonical({"a": [0.5, None], "b": 1})
        == b'{"a":[0.5,null],"b":1}'
    )
    with pytest.raises(ValueError):
        canonical(math.nan)


def test_every_topic_is_ours() -> None:
    assert len(set(TOPICS)) == 7
    assert all(topic.startswith("ratchet.") for topic in TOPICS)


def test_an_experience_ignores_what_a_newer_worker_adds() -> None:
    fields = {
        "id": "ex_1", "revision": 1, "agent": "a", "episode_id": "ep_1", "key_owner": "o", "rater": "r", "arm": "champion",
        "propensity": 1.0, "generation": 0, "adapter_version": "a-000000", "turns": (), "user_texts": (), "ratings": 0,
        "trainable": False, "started_at": 0, "closed_at": 0, "cutoff_at": 0,
    }  # fmt: skip
    experience = Experience.model_validate(fields)
    newer = experience.to_bytes()[:-1] + b',"later":true}'
    assert Experience.from_bytes(newer) == experience
