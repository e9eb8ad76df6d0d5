"""How often each part of a stack was started again: once is bad luck, a third time within minutes is a crash loop.

Pure: seconds are an argument. supervisord itself gives up only on a part that dies within seconds of its start.
"""

from deploy.stack.supervision import State

ALLOWED = 2
WITHIN_S = 300.0


class Restarts:
    """Remembers the process of each part, and when a part last had a new one."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._at: dict[str, list[float]] = {}

    def saw(self, name: str, state: State, *, at: float) -> bool:
        """Look at a part; whether it was started again since the last look. One that rests starts anew afterwards."""
        if state.name == "STOPPED":
            self._pids.pop(name, None)
        if not state.pid:
            return False
        known = self._pids.get(name)
        self._pids[name] = state.pid
        if known in (None, state.pid):
            return False
        self._at[name] = [*(then for then in self._at.get(name, ()) if at - then < WITHIN_S), at]
        return True

    def is_looping(self, name: str) -> bool:
        """Whether it was started again more often than bad luck explains."""
        return len(self._at.get(name, ())) > ALLOWED
