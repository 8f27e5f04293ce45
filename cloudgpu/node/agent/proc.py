"""Processes: identify them even if PIDs are reused, find the leftovers of a run, and clean up if this process dies."""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, List, Sequence

MARK = "CLOUDGPU_AGENT_MARK"
"""Environment variable that every process of a run inherits. It identifies the process in any session or group."""

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
CleanUp = Callable[[List[bytes]], None]
_DISMISSAL = b"bye\n"


def boot_id() -> str:
    """Return the kernel's ID of this boot, or an empty string if unknown. PIDs from another boot are meaningless."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Return an ID of this machine that survives a reboot and differs between machines that share a file system.

    The host name is part of it, because cloned machines and containers may have the same `/etc/machine-id`.
    """
    try:
        system = Path("/etc/machine-id").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        system = ""
    return _short_hash(system, os.uname().nodename)


def running_system_id() -> str:
    """Return an ID that is the same for two logins only if they see the same processes; empty if unknown.

    Unlike `machine_id`, it distinguishes cloned machines with the same host name and containers of one machine.
    """
    boot = boot_id()
    try:
        return _short_hash(boot, os.readlink("/proc/self/ns/pid")) if boot else ""
    except OSError:
        return ""


def _short_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def start_mark(pid: int) -> str:
    """Return a process's start time in the system's format; empty if the process does not exist or is a zombie."""
    if not _LINUX:
        shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The command name is in parentheses and may contain any character, so count the fields from the last parenthesis.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def process_identity(pid: int) -> dict[str, Any]:
    """Return an identity that distinguishes this process from later processes with the same PID."""
    return {"pid": pid, "started": start_mark(pid), "boot": boot_id()}


def is_alive(process: dict[str, Any]) -> bool:
    """Return True if the process with this identity is still running."""
    return (
        bool(process["started"])
        and process["boot"] == boot_id()
        and start_mark(int(process["pid"])) == process["started"]
    )


class DeathSignal:
    """Parent death signal: the kernel kills the children when their parent dies. It has no effect outside Linux."""

    def __init__(self) -> None:
        # `prctl` is looked up before any fork, because a child should do as little as possible between fork and exec.
        self._prctl: Any | None = ctypes.CDLL(None, use_errno=True).prctl if _LINUX else None

    def adopt_orphans(self) -> None:
        """Become the subreaper for orphaned descendants.

        In a container, PID 1 may not reap orphans, and a process group that contains only zombies still appears alive.
        """
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def arm(self, parent: int) -> None:
        """Request the signal in a child. Exit if the parent has already died, because the signal would never arrive."""
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def forbid_core_dumps() -> None:
    """Make this process leave no core dump, in which its secrets would be on a disk.

    On Linux, the programs that it starts may dump cores again, so a user's ranks keep their own limit. A limit on the
    size of core dumps would be inherited, and does not apply if the kernel pipes core dumps to a program.
    """
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def is_group_alive(group: int) -> bool:
    """Return True if the process group has members."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: int) -> None:
    """Signal a process group. Ignore a group that no longer exists or that this user may not signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def marked_processes(mark: str) -> list[int]:
    """Return the PIDs of all processes with the run's mark in their environment, except this process. Linux only."""
    needle = f"{MARK}={mark}".encode()
    pids = []
    for entry in os.listdir("/proc") if _LINUX else ():
        if entry.isdigit() and int(entry) != os.getpid() and _environ_has(entry, needle):
            pids.append(int(entry))
    return pids


def kill_marked(mark: str) -> None:
    """Kill every process with this mark. Try up to 50 times, because processes may fork while they are being killed."""
    for _ in range(50):
        pids = marked_processes(mark)
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


class WatchdogProcess:
    """A forked process that cleans up when this process dies or closes it, unless it was dismissed.

    Attributes:
        last: The last message that was sent; empty if none was.
    """

    def __init__(self, clean_up: CleanUp, *, open_handles: Sequence[int] = ()) -> None:
        """Start the process.

        Args:
            clean_up: Called in the watchdog with the messages that it received. Its standard streams are `/dev/null`.
            open_handles: Handles that the watchdog keeps open until it exits, such as a lock.
        """
        self.last = b""
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _run(read, clean_up, open_handles)
        os.close(read)

    def send(self, message: bytes) -> None:
        """Send a message, which is one word."""
        self.last = message
        with suppress(BrokenPipeError):  # the watchdog was killed
            os.write(self._write, message + b"\n")

    def dismiss(self) -> None:
        """Let the watchdog exit without cleaning up, and wait until it has closed its handles."""
        with suppress(BrokenPipeError):
            os.write(self._write, _DISMISSAL)
        os.close(self._write)
        with suppress(ChildProcessError):  # it was killed, and reaped with this process's other children
            os.waitpid(self._pid, 0)

    def close(self) -> None:
        """Let the watchdog clean up, without waiting for it."""
        os.close(self._write)


def _run(read: int, clean_up: CleanUp, open_handles: Sequence[int]) -> None:
    """Run the watchdog. Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)  # the docker client expects open streams, and the caller waits for the end of its own
        # Inherited handles would keep locks held and pipes open, also the one whose end this process waits for.
        handles = sorted({2, read, *open_handles})
        for handle, following in zip(handles, [*handles[1:], 4096]):
            os.closerange(handle + 1, following)
        received = b""
        for data in iter(lambda: os.read(read, 4096), b""):
            received += data
            if received.endswith(_DISMISSAL):
                return
        clean_up(received.split())
    finally:
        os._exit(0)
