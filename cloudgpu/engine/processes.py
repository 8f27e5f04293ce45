"""Check whether a recorded process still exists and is the same one."""

import os
from pathlib import Path


def process_start(pid: int) -> str:
    """Return when a process started, in kernel ticks; empty if it does not exist or is a zombie.

    A process ID may be reused; together with the start time it is unique.
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
