"""Identify a process by its ID and start time, to check later whether the same process still exists.

The state home may be on a file system that several machines or containers share, so a record of a process also needs
the system in which its ID has a meaning.
"""

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from cloudgpu import files


@dataclass(frozen=True)
class System:
    """The running system of a process.

    Attributes:
        machine: ID of the machine, which survives a reboot. Cloned machines may have the same ID.
        boot: ID that changes at every boot; empty if the system does not provide one.
        pid_namespace: ID of the namespace of process IDs, which is a container's own; empty if unknown.
    """

    machine: str
    boot: str
    pid_namespace: str

    def __str__(self) -> str:
        """Return the system as one word, for a record of a process."""
        return "/".join((self.machine, self.boot, self.pid_namespace))

    def shares_processes(self, recorded: str) -> bool:
        """Return True if a process ID that was recorded with this system has the same meaning here.

        An empty text, which older versions recorded, counts as this system.
        """
        machine, *rest = recorded.split("/")
        is_same = rest == [self.boot, self.pid_namespace] and (bool(self.boot) or machine == self.machine)
        return not recorded or is_same

    def has_rebooted_since(self, recorded: str) -> bool:
        """Return True if a process was recorded on this machine before its last boot, and so has ended."""
        machine, *rest = recorded.split("/")
        return machine == self.machine and rest[:1] != [self.boot]


def this_system() -> System:
    """Return the running system of this process."""
    identity = f"{_text_of('/etc/machine-id')}\0{socket.gethostname()}"
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    machine = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return System(machine, _text_of("/proc/sys/kernel/random/boot_id"), namespace)


def _text_of(path: str) -> str:
    try:
        return files.read_text(Path(path), files.SETTINGS_BYTES).strip()
    except (OSError, ValueError):
        return ""


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
