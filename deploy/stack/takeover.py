"""Become a part of the stack: `python -m deploy.stack.takeover COMMAND …`, after ending what a killed predecessor left.

supervisord starts a killed part again but leaves its children; one of them may still hold the port. Only processes
with this stack's mark and this part's own name are ended.
"""

import os
import sys

import psutil

from deploy.stack.marks import MARK, variable_of

# Set by supervisord in every process that it starts, and inherited by that one's children.
PART = "SUPERVISOR_PROCESS_NAME"


def leftovers(mark: str, part: str) -> list[psutil.Process]:
    """Live processes of the same part of the same stack, this one apart."""
    return [
        each
        for each in psutil.process_iter()
        if each.pid != os.getpid() and variable_of(each, MARK) == mark and variable_of(each, PART) == part
    ]


def main(command: list[str]) -> None:
    """End the leftovers, then become the command."""
    mark, part = os.environ.get(MARK, ""), os.environ.get(PART, "")
    if mark and part:
        found = leftovers(mark, part)
        for process in found:
            process.kill()
        psutil.wait_procs(found, timeout=10)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
