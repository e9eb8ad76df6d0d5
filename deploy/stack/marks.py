"""The mark that says which stack a process belongs to: an environment variable, so that orphans carry it too."""

import psutil

MARK = "RATCHET_STACK"


def variable_of(process: psutil.Process, name: str) -> str | None:
    """A variable of another process's environment; None for one that is gone, a zombie or not ours to read."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None
