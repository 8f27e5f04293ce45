"""Processes of a node: their interface, the variant without namespaces, timers, and commands of the superuser.

Without namespaces, a node's processes are ordinary processes, identified by an environment variable.
"""

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes.images import Layer
from cloudgpu.rehearsal.nodes.record import Console, StoredRecord, Timer
from cloudgpu.rehearsal.nodes.servers.metadata import SPOT_RECLAIM_REASON
from cloudgpu.rehearsal.nodes.servers.power_commands import Action, immediate_action
from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

_LONGEST_SLEEP_S = 3600.0
"""Maximum wait between checks. The event loop's clock stops while the machine is suspended, so long waits fire late."""
_ROUNDS = 50
_ROUND_S = 0.1
_ENTER = 'cd "$0" 2>/dev/null || cd /; exec "$@"'


class NodeRuntime(Protocol):
    """The runtime of one simulated node's processes on this machine."""

    @property
    def layer(self) -> Layer:
        """Location of the node's files, on this machine and inside the node."""

    @property
    def process(self) -> tuple[int, int]:
        """Pid and start time of the init, or (0, 0) if there is no init."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the node's processes."""

    def home(self, user: str) -> str:
        """Return the login user's home directory as seen inside the node."""

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """Return a command that runs `argv` in the node. Set `terminal` if standard input is the node's terminal."""

    def entering(self) -> list[str]:
        """Return the prefix of a command that the host runs inside the node with the host's privileges.

        The prefix is empty if the node has no namespaces.
        """

    @property
    def take_terminal(self) -> Callable[[], None] | None:
        """Function that a new process calls to acquire its terminal, or None if `command` includes that step."""

    def open_terminal(self) -> tuple[int, int]:
        """Open a new pseudo-terminal of the node. Return its master and slave descriptors.

        Raises:
            OSError: No terminal is available.
        """

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to the process group of a command started with `command`, unless the command has exited."""

    def limit_home(self, kib: int) -> None:
        """Limit the size of the login user's home directory from the next boot on. No effect without namespaces."""

    async def power_on(self) -> None:
        """Prepare to run processes.

        Raises:
            RehearsalError: The machine does not permit namespaces, or the init did not become ready in time.
        """

    def adopt(self, process: tuple[int, int]) -> bool:
        """Take over the init that an earlier host process started. Return False if the init has exited."""

    async def ended(self) -> None:
        """Wait until the node's init exits, or forever if there is no init."""

    async def power_off(self) -> None:
        """Kill every process of the node. Return once all processes have exited.

        Raises:
            RehearsalError: A process did not exit.
        """


class NodeTimers:
    """The timers of one running node. The node's record contains the due times, so timers outlive the node host."""

    def __init__(
        self,
        stored: StoredRecord,
        *,
        now_s: Callable[[], float],
        cloud_now_s: Callable[[], float],
        run: Callable[[Sequence[str]], None],
        end: Callable[[Action, str], None],
    ) -> None:
        """Create the timers without arming them.

        Args:
            stored: Record of the node.
            now_s: Function that returns the node's time, which a fault may skew.
            cloud_now_s: Function that returns the cloud's time, which determines when spot instances are interrupted.
            run: Function that runs a command in the node.
            end: Function that powers off or reboots the node; called with the action and the reason.
        """
        self._stored = stored
        self._now_s = now_s
        self._cloud_now_s = cloud_now_s
        self._run = run
        self._end = end
        self._waiting: list[asyncio.TimerHandle] = []

    def arm(self) -> None:
        """Reschedule all timers after a timer or a clock has changed. Timers that are due fire immediately."""
        self.disarm()
        record, now_s = self._stored.current, self._now_s()
        waits_s = [timer.due_epoch_s - now_s for timer in record.timers]
        if record.spot_end_epoch_s:
            waits_s.append(record.spot_end_epoch_s - self._cloud_now_s())
        loop = asyncio.get_running_loop()
        self._waiting = [loop.call_later(min(max(0.0, wait_s), _LONGEST_SLEEP_S), self._fire_due) for wait_s in waits_s]

    def disarm(self) -> None:
        """Cancel all timers. Their due times stay in the node's record."""
        for handle in self._waiting:
            handle.cancel()
        self._waiting = []

    def _fire_due(self) -> None:
        record = self._stored.current
        if 0 < record.spot_end_epoch_s <= self._cloud_now_s():
            self._end("off", SPOT_RECLAIM_REASON)
            return
        now_s = self._now_s()
        due = [timer for timer in record.timers if timer.due_epoch_s <= now_s]
        if due:
            self._stored.change(timers=tuple(timer for timer in record.timers if timer not in due))
        self.arm()
        for timer in due:
            self._fire(timer)

    def _fire(self, timer: Timer) -> None:
        action = immediate_action(timer.command)
        if action is None:
            self._run(timer.command)
        else:
            self._end(action, f"its timer {timer.unit} fired")


async def run(
    body: NodeRuntime, console: Console, argv: Sequence[str], environment: Mapping[str, str], stdin: bytes | None = None
) -> int:
    """Run one command and return its exit status. If `stdin` is None, standard input is empty."""
    output = console.open()
    try:
        process = await asyncio.create_subprocess_exec(
            *body.command(list(argv), cwd="/", terminal=False),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=output, stderr=output, env=dict(environment), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(output)
    await process.communicate(stdin)
    return process.returncode or 0


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
