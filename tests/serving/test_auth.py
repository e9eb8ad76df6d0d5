"""Keys: hashed at rest, scopes checked, made once."""

import hashlib
import json
from pathlib import Path

import pytest

from feedback.people import person
from serving.auth import SCOPES, KeyFileError, ensure_key, load_keys


def test_configured_keys_have_their_scopes(tmp_path: Path) -> None:
    ring = load_keys(tmp_path, "app:s1, ops:s2:admin+chat")
    app, ops = ring.find("Bearer s1"), ring.find("bearer s2")
    assert app is not None and app.owner == "app" and app.scopes == {"chat", "feedback"}
    assert ops is not None and ops.may("admin") and not ops.may("feedback")
    assert list(tmp_path.iterdir()) == []
    for header in (None, "", "Bearer", "Bearer s3", "Basic s1", "s1", "Bearer s1 s2"):
        assert ring.find(header) is None, header


def test_the_first_start_makes_one_key_for_everybody_and_stores_only_its_hash(tmp_path: Path) -> None:
    secret = ensure_key(tmp_path / "home")
    assert ensure_key(tmp_path / "home") == secret
    key = load_keys(tmp_path / "home", "").find(f"Bearer {secret}")
    assert key is not None and key.scopes == set(SCOPES)
    stored = tmp_path / "home" / "keys.json"
    assert secret not in stored.read_text()
    for path in (stored, tmp_path / "home" / "api-key"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_plain_key_that_was_taken_away_leaves_the_keys_as_they_are(tmp_path: Path) -> None:
    secret = ensure_key(tmp_path)
    (tmp_path / "api-key").unlink()
    assert ensure_key(tmp_path) == ""
    assert load_keys(tmp_path, "").find(f"Bearer {secret}") is not None
    assert not (tmp_path / "api-key").exists()


@pytest.mark.parametrize("configured", ["app", "app:", "a b:s", "app:s:fly", ":s"])
def test_a_wrong_entry_is_named_without_its_secret(tmp_path: Path, configured: str) -> None:
    with pytest.raises(KeyFileError):
        load_keys(tmp_path, configured)


def test_a_broken_key_file_is_an_error_and_no_open_door(tmp_path: Path) -> None:
    ensure_key(tmp_path)
    for text in ("{", json.dumps({"keys": []}), json.dumps({"keys": [{"name": "x"}]})):
        (tmp_path / "keys.json").write_text(text)
        with pytest.raises(KeyFileError):
            load_keys(tmp_path, "")


def test_a_configured_key_may_be_given_as_its_hash(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"s1").hexdigest()
    ring = load_keys(tmp_path, f"app:sha256={digest}:chat")
    key = ring.find("Bearer s1")
    assert key is not None and key.scopes == {"chat"}
    assert ring.find(f"Bearer sha256={digest}") is None and ring.find(f"Bearer {digest}") is None


def test_a_keys_id_finds_it_and_tells_nothing(tmp_path: Path) -> None:
    ring = load_keys(tmp_path, "app:s1,ops:s2")
    app, ops = ring.find("Bearer s1"), ring.find("Bearer s2")
    assert app is not None and ops is not None and app.id != ops.id
    assert ring.by_id(app.id) == app and ring.by_id("0" * 12) is None
    assert app.id not in app.digest.hex()


def test_people_of_different_owners_differ() -> None:
    assert person("app", "anna") == person("app", "anna") != person("other", "anna")
    assert len(person("app", "anna")) == 16
