"""Requests of the command line to a running stack, each answered by JSON or by one line that says what is wrong.

A refusal keeps the server's own words and the field it names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx


class CallError(RuntimeError):
    """The request did not succeed. `code` is the exit code it deserves."""

    def __init__(self, said: str, *, code: int) -> None:
        super().__init__(said)
        self.code = code


FAILED, BAD_INPUT, UNREACHABLE = 1, 2, 3
OFFER_S = 300.0


def read_key(home: Path) -> str:
    """RATCHET_API_KEY, else the key that this home's first start generated. Raises CallError."""
    named = os.environ.get("RATCHET_API_KEY", "")
    if named:
        return named
    try:
        return (home / "api-key").read_text().strip()
    except OSError as error:
        said = f"no key in {home / 'api-key'}; start the stack with `ratchet up`, or set RATCHET_API_KEY"
        raise CallError(said, code=UNREACHABLE) from error


def offer(what: str, address: str, *, key: str) -> Any:
    """Put an adapter folder, or a registered version, up for trial. Raises CallError.

    The gate loads the folder and MLflow takes a copy: on a busy machine that is minutes.
    """
    folder = Path(what)
    body = {"path": str(folder.absolute())} if folder.is_dir() else {"version": what}
    return call("POST", f"{address}/v1/canaries", key=key, body=body, timeout_s=OFFER_S)


def call(
    method: str, address: str, *, key: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0
) -> Any:
    """The reply's JSON. Raises CallError."""
    try:
        reply = httpx.request(
            method,
            address,
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            trust_env=False,
        )
    except httpx.ReadTimeout as error:
        said = f"{address.split('/v1')[0]} took this and has not answered for {timeout_s:g} s"
        raise CallError(said, code=FAILED) from error
    except httpx.HTTPError as error:
        said = f"nothing answers at {address.split('/v1')[0]} ({type(error).__name__}); is the stack up?"
        raise CallError(said, code=UNREACHABLE) from error
    if reply.is_error:
        raise CallError(explain_refusal(reply), code=FAILED if reply.status_code >= 500 else BAD_INPUT)
    return reply.json() if reply.content else {}


def explain_refusal(reply: httpx.Response) -> str:
    """`422 feedback[0].value: must be a boolean`, from OpenAI's error shape or whatever came instead."""
    try:
        error = reply.json()["error"]
        where = f"{error['param']}: " if error.get("param") else ""
        return f"{reply.status_code} {where}{error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{reply.status_code} {reply.text[:200]}"
