"""Processes: who one is beyond its number, whether it still lives, and what a run has left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "CLOUDGPU_AGENT_MARK"
"""Environment variable that every process of a run inherits, so that it is found wherever it hides."""

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def boot_id() -> str:
    """The identity of this boot; process numbers of another boot mean nothing. Empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_mark(pid: int) -> str:
    """When the process started, in the system's own words; empty when it is gone or a zombie."""
    if not _LINUX:
        shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The command name stands in parentheses and may hold any character, so fields count from the last one.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def identity(pid: int) -> dict[str, Any]:
    """What tells this process from a later one with the same number."""
    return {"pid": pid, "started": start_mark(pid), "boot": boot_id()}


def alive(who: dict[str, Any]) -> bool:
    """Whether the process of this identity still runs."""
    return bool(who["started"]) and who["boot"] == boot_id() and start_mark(int(who["pid"])) == who["started"]


class DeathSignal:
    """Ties the lives of parent and child together in the kernel. Does nothing where the system cannot."""

    def __init__(self) -> None:
        # Looked up before any fork: a child between fork and exec should do as little as possible.
        self._prctl: Any | None = ctypes.CDLL(None, use_errno=True).prctl if _LINUX else None

    def adopt_orphans(self) -> None:
        """Become the parent of what children leave behind: an init that buries nobody would keep their groups alive."""
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def arm(self, parent: int) -> None:
        """Called in the child. A parent that died before this call would not be noticed, hence the look."""
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def group_alive(group: int) -> bool:
    """Whether a process group has members left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: int) -> None:
    """Signal every member of a process group that is still there."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def marked(mark: str) -> list[int]:
    """Every process that carries the mark of a run, whatever group or session it moved to. Linux only."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc") if _LINUX else ():
        if entry.isdigit() and int(entry) != os.getpid() and _environ_has(entry, needle):
            found.append(int(entry))
    return found


def kill_marked(mark: str) -> None:
    """End every process of a run at once; looks again until none is left, because they may fork meanwhile."""
    for _ in range(50):
        pids = marked(mark)
        for pid in pids:
            _kill(pid)
        if not pids:
            return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _environ_has(pid: str, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return needle in stream.read().split(b"\0")
    except OSError:
        return False
