"""`ratchet status`: each part's health and what the controller has live. Reads only."""

from typing import Any

from deploy.calls import CallError, call, read_key
from deploy.stack.plan import StackSettings, deploy_address
from deploy.stack.supervision import State, read_states, supervisor_pid
from deploy.stack.up import is_well, read_plan

_SHOWN = ("agent", "champion", "previous_champion", "share", "spooled")


def read_status(settings: StackSettings) -> dict[str, Any]:
    """`{"running", "parts": [{"name", "well", "state", "pid", "address"}], "live": deploy's own status or null}`."""
    states = _states(settings)
    _, plan = read_plan(settings)
    parts = []
    for part in plan.parts:
        state = states.get(part.name)
        parts.append(
            {
                "name": part.name,
                "well": is_well(part.health),
                "state": state.name if state else "NOT STARTED",
                "pid": state.pid if state else 0,
                "address": part.health,
            }
        )
    return {"running": bool(states), "parts": parts, "live": _live(settings) if states else None}


def render_status(found: dict[str, Any]) -> str:
    """Text for a person."""
    if not found["running"]:
        return "nothing runs here; `ratchet up` starts it"
    lines = [
        f"{part['name']:9} {'well' if part['well'] else 'UNWELL':7} {part['state']:9} pid {part['pid']}  {part['address']}"
        for part in found["parts"]
    ]
    return "\n".join([*lines, *_live_lines(found["live"] or {})])


def _live_lines(live: dict[str, Any]) -> list[str]:
    lines = [f"{name}: {live[name]}" for name in _SHOWN if live.get(name) is not None]
    trial = live.get("canary")
    if trial:
        lines.append(
            f"canary: {trial['id']} tries {trial['version']} at share {trial['share']}, {trial['phase']}"
        )
    return [*lines, *(f"warning: {warning}" for warning in live.get("warnings", []))]


def _states(settings: StackSettings) -> dict[str, State]:
    if supervisor_pid(settings.home) is None:
        return {}
    try:
        return read_states(settings.home)
    except OSError:
        return {}


def _live(settings: StackSettings) -> Any:
    try:
        return call("GET", f"{deploy_address(settings)}/v1/status", key=read_key(settings.home), timeout_s=3)
    except CallError:
        return None
