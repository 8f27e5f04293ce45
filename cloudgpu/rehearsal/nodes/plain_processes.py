"""A node without namespaces: its processes are ordinary processes, identified by an environment variable."""

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes.boot.base_image import Layer
from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

_ROUNDS = 50
_ROUND_S = 0.1
_ENTER = 'cd "$0" 2>/dev/null || cd /; exec "$@"'


class PlainBody:
    """The processes of one node without namespaces. The node's files are in `CLOUDGPU_NODE_ROOT`."""

    def __init__(self, root: Path, run: Path, surroundings: VisiblePaths) -> None:
        """Create the runtime without starting a process.

        Args:
            root: Directory that serves as the node's `/`.
            run: Directory that contains the sockets shared by the node and the host.
            surroundings: Paths on this machine that the node may see.
        """
        self._root = root
        self._run = run
        self._surroundings = surroundings
        self.process = (0, 0)
        self.layer = Layer(root, str(root), surroundings)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the node's processes."""
        temporary = str(self._root / "tmp")
        return dict(self._surroundings.environment) | {
            "CLOUDGPU_NODE_ROOT": str(self._root),
            "CLOUDGPU_NODE_RUN": str(self._run),
            "PATH": f"{self._root}/usr/local/bin:{self._surroundings.path}",
            "TMPDIR": temporary,
        }

    def limit_home(self, kib: int) -> None:
        """Do nothing, because limiting the size of a home directory requires a mount namespace."""

    def home(self, user: str) -> str:
        """Return the login user's home directory as seen by the node."""
        return str(self._root / "home" / user)

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """Return a shell command that runs `argv` in `cwd`. The caller creates the session and the terminal."""
        del terminal
        return ["/bin/sh", "-c", _ENTER, cwd, *argv]

    def entering(self) -> list[str]:
        """Return an empty list, because there are no namespaces to enter."""
        return []

    @property
    def take_terminal(self) -> Callable[[], None]:
        """Function that makes standard input the controlling terminal of a new process's session."""
        return _take_terminal

    def open_terminal(self) -> tuple[int, int]:
        """Open a pseudo-terminal on this machine. Return its master and slave descriptors."""
        return pty.openpty()

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a command's process group, if the group still exists."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return

    async def power_on(self) -> None:
        """Do nothing, because there is no init."""

    def adopt(self, process: tuple[int, int]) -> bool:
        """Return True: there is no init to take over, and `power_off` finds running processes by their environment."""
        del process
        return True

    async def ended(self) -> None:
        """Wait forever, because there is no init."""
        await asyncio.get_running_loop().create_future()

    async def power_off(self) -> None:
        """Repeatedly kill the processes that have the node's root in their environment, until none are left."""
        loop = asyncio.get_running_loop()
        for _ in range(_ROUNDS):
            pids = await loop.run_in_executor(None, self._processes)
            if not pids:
                return
            for pid in pids:
                self._kill(pid)
            await asyncio.sleep(_ROUND_S)
        raise RehearsalError(f"processes of the node in {self._root} did not exit")

    @staticmethod
    def _kill(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _processes(self) -> list[int]:
        marker = f"CLOUDGPU_NODE_ROOT={self._root}"
        return _marked_linux(marker) if sys.platform == "linux" else _marked_elsewhere(marker)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _marked_linux(marker: str) -> list[int]:
    entry, pids = marker.encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Zombies, which wait only to be reaped, have an empty environment and do not match.
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in pids if pid != os.getpid()]


def _marked_elsewhere(marker: str) -> list[int]:
    listing = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if marker in line]
