"""`ratchet canary …`: requests to the controller's own API, answered as text or JSON."""

import json
from typing import Annotated, Any

import typer

from deploy.terminal import AsJson, answer, faults_end_it, read_settings, rows_of, table, working

CanaryId = Annotated[str, typer.Argument(help="cn_…, active or latest.")]

canary = typer.Typer(
    help="Try a version on a share of the traffic, and steer the trial.", no_args_is_help=True
)


@canary.command()
def offer(
    what: Annotated[str, typer.Argument(help="An adapter folder, or the name of a registered version.")],
    as_json: AsJson = False,
) -> None:
    """Put a version up for trial."""
    from deploy.calls import offer as put_up
    from deploy.calls import read_key
    from deploy.stack.plan import deploy_address

    settings = read_settings(None)
    with faults_end_it(), working("checked by the gate and registered"):
        found = put_up(what, deploy_address(settings), key=read_key(settings.home))
    _say_canary(found, as_json=as_json)


@canary.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """Every trial, oldest first."""
    found = ask_deploy("GET", "/v1/canaries")
    answer(found, table(rows_of(found), ("id", "version", "phase", "verdict", "reason")), as_json=as_json)


@canary.command()
def show(canary_id: CanaryId = "active", as_json: AsJson = False) -> None:
    """One trial with its steps and evidence."""
    found = ask_deploy("GET", f"/v1/canaries/{canary_id}")
    answer(found, json.dumps(found, indent=2), as_json=as_json)


@canary.command()
def promote(
    canary_id: CanaryId = "active",
    full: Annotated[
        bool, typer.Option("--full", help="Make it champion now, not only leave the step.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Leave the current step; with --full, make the candidate champion."""
    _steer(canary_id, "promote", {"full": full}, as_json=as_json)


@canary.command()
def pause(canary_id: CanaryId = "active", as_json: AsJson = False) -> None:
    """Hold the trial where it is; harm still ends it."""
    _steer(canary_id, "pause", {}, as_json=as_json)


@canary.command()
def resume(canary_id: CanaryId = "active", as_json: AsJson = False) -> None:
    """Go on after a pause."""
    _steer(canary_id, "resume", {}, as_json=as_json)


@canary.command()
def abort(canary_id: CanaryId = "active", as_json: AsJson = False) -> None:
    """Stop it: everyone is back on the champion."""
    _steer(canary_id, "abort", {}, as_json=as_json)


@canary.command()
def retry(canary_id: CanaryId = "latest", as_json: AsJson = False) -> None:
    """Try the same version again from its first step."""
    _steer(canary_id, "retry", {}, as_json=as_json)


@canary.command()
def undo(canary_id: CanaryId = "latest", as_json: AsJson = False) -> None:
    """Take back the promotion that made the present champion; the one before it returns. Twice goes back twice."""
    _steer(canary_id, "undo", {}, as_json=as_json)


def _steer(canary_id: str, verb: str, body: dict[str, Any], *, as_json: bool) -> None:
    _say_canary(ask_deploy("POST", f"/v1/canaries/{canary_id}/{verb}", body), as_json=as_json)


def _say_canary(found: Any, *, as_json: bool) -> None:
    facts = (found.get("id"), found.get("version"), found.get("phase"))
    answer(found, " ".join(str(fact) for fact in facts if fact), as_json=as_json)


def ask_deploy(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON reply of deploy's API; a refusal ends the verb."""
    from deploy.calls import call, read_key
    from deploy.stack.plan import deploy_address

    settings = read_settings(None)
    with faults_end_it():
        return call(method, deploy_address(settings) + path, key=read_key(settings.home), body=body)
