"""A dead letter fits the bus whatever the record holds, and says what was cut."""

import base64

import pytest

from feedback.bus import MAX_VALUE_BYTES, Record
from feedback.dead_letters import VALUE_BYTES, dead_letter, letter_key


def record(value: bytes | None, key: str | None = "k") -> Record:
    return Record("ratchet.experiences", 1, 7, key, value, 5)


def test_a_letter_holds_the_record_and_where_it_came_from() -> None:
    letter = dead_letter(record(b"{"), "not JSON", at=9)
    assert (letter.topic, letter.partition, letter.offset, letter.at) == ("ratchet.experiences", 1, 7, 9)
    assert (letter.reason, letter.value_base64) == ("not JSON", "ew==")


@pytest.mark.parametrize(("value", "kept"), [(None, None), (b"", "")])
def test_nothing_and_empty_stay_apart(value: bytes | None, kept: str | None) -> None:
    assert dead_letter(record(value), "empty value", at=0).value_base64 == kept


@pytest.mark.parametrize("reason", ["no", "x" * 900_000, "\0" * 900_000])
def test_the_largest_value_and_reason_fit_the_bus(reason: str) -> None:
    letter = dead_letter(record(b"\xff" * MAX_VALUE_BYTES), reason, at=0)
    assert len(letter.to_bytes()) <= MAX_VALUE_BYTES
    assert len(base64.b64decode(letter.value_base64 or "")) == VALUE_BYTES
    assert letter.reason.endswith("(first 700000 of 1000000 bytes)")


@pytest.mark.parametrize(
    ("key", "kept"), [(None, ""), ("a\0b", "ab"), ("k" * 2_000, "k" * 1_000), ("ep_1", "ep_1")]
)
def test_a_key_is_what_every_database_and_broker_takes(key: str | None, kept: str) -> None:
    assert letter_key(record(b"", key)) == kept
