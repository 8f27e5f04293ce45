"""A node without namespaces: ordinary processes, told apart by a variable in their environment."""

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
from cloudgpu.rehearsal.nodes.visible_paths import Surroundings

_ROUNDS = 50
_ROUND_S = 0.1
_ENTER = 'cd "$0" 2>/dev/null || cd /; exec "$@"'


class PlainBody:
    """One node's processes. Every path that it should use lies under `CLOUDGPU_NODE_ROOT`."""

    def __init__(self, root: Path, run: Path, surroundings: Surroundings) -> None:
        """Nothing runs yet.

        Args:
            root: The folder that stands for the node's `/`.
            run: Where its socket to the host lies.
            surroundings: What it may use of the machine.
        """
        self._root = root
        self._run = run
        self._surroundings = surroundings
        self.process = (0, 0)
        self.layer = Layer(root, str(root), surroundings)

    def environment(self) -> dict[str, str]:
        """The variables that every process of the node starts with."""
        temporary = str(self._root / "tmp")
        return dict(self._surroundings.environment) | {
            "CLOUDGPU_NODE_ROOT": str(self._root),
            "CLOUDGPU_NODE_RUN": str(self._run),
            "PATH": f"{self._root}/usr/local/bin:{self._surroundings.path}",
            "TMPDIR": temporary,
        }

    def limit_home(self, kib: int) -> None:
        """Nothing: without a mount namespace the home is as large as the disk it lies on."""

    def home(self, user: str) -> str:
        """The login user's home as the node sees it."""
        return str(self._root / "home" / user)

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """The command itself; the caller gives it a session of its own and its terminal."""
        del terminal
        return ["/bin/sh", "-c", _ENTER, cwd, *argv]

    def entering(self) -> list[str]:
        """Nothing: there are no namespaces to enter."""
        return []

    @property
    def take_terminal(self) -> Callable[[], None]:
        """The new process leads a session already; its standard input becomes that session's terminal."""
        return _take_terminal

    def open_terminal(self) -> tuple[int, int]:
        """A terminal of the machine.

        Raises:
            OSError: None is left.
        """
        return pty.openpty()

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal the process group that a command leads."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return

    async def power_on(self) -> None:
        """Nothing to do: there is no init."""

    def adopt(self, process: tuple[int, int]) -> bool:
        """Always possible: whatever still runs is found by its environment."""
        del process
        return True

    async def ended(self) -> None:
        """Never: there is no init."""
        await asyncio.get_running_loop().create_future()

    async def power_off(self) -> None:
        """Kill what carries the node's root in its environment, until a whole look finds nothing.

        Raises:
            RehearsalError: Something does not die.
        """
        loop = asyncio.get_running_loop()
        for _ in range(_ROUNDS):
            found = await loop.run_in_executor(None, self._processes)
            if not found:
                return
            for pid in found:
                self._kill(pid)
            await asyncio.sleep(_ROUND_S)
        raise RehearsalError(f"processes of the node in {self._root} did not end")

    def resident_files(self) -> list[Path]:
        """The `/proc` folders of the node's processes; none on systems without `/proc`."""
        return [Path(f"/proc/{pid}") for pid in self._processes()] if sys.platform == "linux" else []

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
    wanted, found = marker.encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie's environment reads empty: it is dead already and only waits to be reaped.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def _marked_elsewhere(marker: str) -> list[int]:
    listing = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if marker in line]
