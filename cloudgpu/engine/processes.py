"""Whether a process that was noted down is still there, and is still the same one."""

import os
from pathlib import Path


def process_start(pid: int) -> str:
    """When a process began, in kernel ticks, or an empty text when it is not there (a zombie is not).

    A process id alone may be somebody else's by now; both together are not.
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
