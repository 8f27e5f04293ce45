"""Identify a process by its ID and start time, to check later whether the same process still exists."""

import os
from pathlib import Path


def process_start(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if the process does not exist or is a zombie.

    The kernel reuses process IDs, so only the pair of ID and start time identifies a process. On systems without
    `/proc`, return `alive` for every existing process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _alive_without_proc(pid)
    state, start = fields[0], fields[19]
    return "" if state in {"Z", "X"} else start


def _alive_without_proc(pid: int) -> str:
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "alive"
