"""API keys: hashed at rest, compared in constant time, each with scopes. The plain key of the first start lies in `api-key`, mode 600.

A key's name is its owner: episodes and feedback belong to it.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedback.settings import listed

SCOPES = ("chat", "feedback", "admin", "end-users")
_DEFAULT_SCOPES = frozenset({"chat", "feedback"})
_HASHED = re.compile(r"^sha256=([0-9a-f]{64})$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


class KeyFileError(ValueError):
    """The keys cannot be used; the text says which entry, never the secret."""


@dataclass(frozen=True, slots=True)
class Key:
    """Who is calling and what the key may do. `end-users`: it vouches for the users it names."""

    owner: str
    scopes: frozenset[str]
    digest: bytes

    @property
    def id(self) -> str:
        """Names the key without telling anything about it or its owner."""
        return hashlib.sha256(b"key-id\0" + self.digest).hexdigest()[:12]

    def may(self, scope: str) -> bool:
        """Whether the key has the scope."""
        return scope in self.scopes


class KeyRing:
    """All valid keys."""

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise KeyFileError("no API key is configured")
        self._keys = tuple(keys)

    def find(self, authorization: str | None) -> Key | None:
        """The key of an `Authorization: Bearer …` header. Every key is compared, whatever matches."""
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret.strip())
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if scheme.lower() == "bearer" else None

    def by_id(self, key_id: str) -> Key | None:
        """The key of that id."""
        return next((key for key in self._keys if key.id == key_id), None)


def load_keys(home: Path, configured: str) -> KeyRing:
    """The keys of `RATCHET_API_KEYS` (`name:secret:scope+scope`, comma between), else those of `keys.json`.

    In place of a secret its hash may stand: `sha256=` and 64 hexadecimal digits.
    """
    if configured.strip():
        return KeyRing([_configured(entry) for entry in listed(configured)])
    ensure_key(home)
    return KeyRing(_stored(home / "keys.json"))


def ensure_key(home: Path) -> str:
    """The plain key of this home, generated with its hash where there are no keys yet; empty where it was taken away."""
    plain, hashed = home / "api-key", home / "keys.json"
    if hashed.exists():
        return plain.read_text().strip() if plain.exists() else ""
    home.mkdir(parents=True, exist_ok=True)
    secret = f"sk-ratchet-{secrets.token_hex(24)}"
    entry = {"name": "local", "sha256": _digest(secret).hex(), "scopes": list(SCOPES)}
    _write_private(plain, secret + "\n")
    _write_private(hashed, json.dumps({"keys": [entry]}, indent=1))
    return secret


def _configured(entry: str) -> Key:
    name, _, rest = entry.partition(":")
    secret, _, listed = rest.partition(":")
    if not secret:
        raise KeyFileError(f"RATCHET_API_KEYS: entry {name[:16]!r} is not name:secret:scope+scope")
    scopes = frozenset(listed.split("+")) if listed else _DEFAULT_SCOPES
    hashed = _HASHED.match(secret)
    return _checked(name, scopes, bytes.fromhex(hashed[1]) if hashed else _digest(secret))


def _stored(path: Path) -> list[Key]:
    try:
        entries = json.loads(path.read_text())["keys"]
        return [
            _checked(entry["name"], frozenset(entry["scopes"]), bytes.fromhex(entry["sha256"]))
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeyFileError(f"{path.name}: {error}") from error


def _checked(name: str, scopes: frozenset[str], digest: bytes) -> Key:
    if not _NAME.match(name):
        raise KeyFileError(f"key name {name[:16]!r} must match {_NAME.pattern}")
    if unknown := scopes - set(SCOPES):
        raise KeyFileError(f"key {name}: unknown scopes {sorted(unknown)}; there are {', '.join(SCOPES)}")
    return Key(name, scopes, digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    temporary.replace(path)
