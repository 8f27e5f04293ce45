"""A node with its own mount, PID, UTS and IPC namespaces. Requires root on Linux."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes import namespace_script
from cloudgpu.rehearsal.nodes.images import Layer

_LOG = logging.getLogger(__name__)
_BOOT_TIMEOUT_S = 30.0
_DEATH_TIMEOUT_S = 20.0
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_NAMESPACES = ("--mount", "--uts", "--ipc", "--pid")
_ENTER = 'cd "$0" 2>/dev/null || cd /; exec "$@"'
_REPLACED = ("/usr", "/bin", "/sbin", "/lib", "/etc", "/opt", "/var", "/var/log", "/usr/bin", "/usr/sbin", "/usr/local")


class CagedBody:
    """The namespaces of one node, which the node's init process keeps alive."""

    def __init__(self, cage: namespace_script.NamespacePaths) -> None:
        """Create the runtime without starting a process.

        Args:
            cage: Paths that make up the node's root.
        """
        self._cage = cage
        self._pidfd = -1
        self.process = (0, 0)
        self.layer = Layer(cage.disk / "upper", "", cage.surroundings)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the node's processes."""
        return dict(self._cage.surroundings.environment) | {"PATH": self._cage.surroundings.path}

    def limit_home(self, kib: int) -> None:
        """Limit the size of the login user's home directory from the next boot on."""
        self._cage = replace(self._cage, home_kib=kib)

    def home(self, user: str) -> str:
        """Return the login user's home directory as seen inside the node."""
        return f"/home/{user}"

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """Return the command on this machine that runs `argv` inside the node."""
        enter = [*self.entering(), *namespace_script.DROP_PRIVILEGES]
        session = ["setsid", "--ctty"] if terminal else ["setsid"]
        return [*enter, *session, "/bin/sh", "-c", _ENTER, cwd, *argv]

    def entering(self) -> list[str]:
        """Return the command prefix that runs a program in the node's namespaces with the host's privileges."""
        return ["nsenter", "--target", str(self.process[0]), *_NAMESPACES, "--"]

    @property
    def take_terminal(self) -> None:
        """Always None, because the `setsid --ctty` in the command acquires the terminal.

        `setsid --ctty` would fail if the new process had already acquired the terminal for another session.
        """

    def open_terminal(self) -> tuple[int, int]:
        """Open a terminal in the node's own `/dev/pts`, so that `tty` and `/dev/tty` work inside the node."""
        master = os.open(f"/proc/{self.process[0]}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
        try:
            fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
            return master, fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
        except BaseException:
            os.close(master)
            raise

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to the process group of `nsenter`'s only child, which is the leader of its own session."""
        try:
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.killpg(int(child), number)
        except (FileNotFoundError, ProcessLookupError):
            return

    async def power_on(self) -> None:
        """Start the init process and wait until its root is set up."""
        self._prepare()
        script = self._cage.disk / "init.sh"
        script.write_text(namespace_script.init_script(self._cage))
        process = await asyncio.create_subprocess_exec(
            "unshare", *_NAMESPACES, "--fork", "--kill-child", "/bin/sh", str(script),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, env={"PATH": self._cage.surroundings.path, "LC_ALL": "C"},
        )  # fmt: skip
        try:
            pid = await asyncio.wait_for(_until_ready(process), _BOOT_TIMEOUT_S)
        except (RehearsalError, TimeoutError) as err:
            if process.returncode is None:
                process.kill()
            raise RehearsalError(f"cannot create the namespaces of a node: {str(err) or 'timed out'}") from err
        self._take(pid)

    def adopt(self, process: tuple[int, int]) -> bool:
        """Take over the init from an earlier host. Return False if the init has exited or its pid was reused."""
        if process[0] == 0 or _started(process[0]) != process[1]:
            return False
        try:
            self._take(process[0])
        except ProcessLookupError:
            return False
        return self.process == process

    async def ended(self) -> None:
        """Wait until the init exits."""
        done = asyncio.Event()
        descriptor = os.dup(self._pidfd)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def power_off(self) -> None:
        """Kill the init. Before the init exits, the kernel kills and reaps all other processes in its PID namespace."""
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait_for(self.ended(), _DEATH_TIMEOUT_S)
        except ProcessLookupError:
            pass
        except TimeoutError as err:
            raise RehearsalError(f"the processes of a node (init {self.process[0]}) did not exit") from err
        os.close(self._pidfd)
        self._pidfd, self.process = -1, (0, 0)

    def _prepare(self) -> None:
        disk = self._cage.disk
        for name in ("upper", "work", "merged", "own", "own/home"):
            (disk / name).mkdir(exist_ok=True)
        image_home = disk / "upper" / "home"
        # At the first boot only, move the login user's home directory to the directory from which the node mounts it.
        if not image_home.is_symlink() and image_home.is_dir() and not any((disk / "own" / "home").iterdir()):
            for home in image_home.iterdir():
                home.rename(disk / "own" / "home" / home.name)

    def _take(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)
        self.process = (pid, _started(pid))


def kill_unrecorded_inits(instances: Path, known: set[int]) -> None:
    """Kill the inits of nodes that an earlier host process started but did not record before it was killed."""
    if sys.platform != "linux":
        return
    marker = f"{instances}/".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            children = (folder / "task" / folder.name / "children").read_text().split()
        except OSError:
            continue
        ours = words[0].endswith(b"unshare") and any(word.startswith(marker) for word in words)
        if ours and not known & {int(child) for child in children}:
            _LOG.warning("killing process %s, which started an unrecorded node init", folder.name)
            with contextlib.suppress(ProcessLookupError):  # the process exited by itself
                os.kill(int(folder.name), signal.SIGKILL)


async def _until_ready(process: asyncio.subprocess.Process) -> int:
    """Return the pid of the init once it prints `ready`."""
    assert process.stdout is not None  # noqa: S101 - the caller requested a pipe
    lines: list[str] = []
    pid = 0
    while line := (await process.stdout.readline()).decode(errors="replace").strip():
        if line == "ready":
            return pid
        if line.startswith("pid "):
            pid = int(line.split()[1])
        lines.append(line)
    raise RehearsalError("; ".join(lines[-3:]) or "its init exited")


def _started(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 if there is no such process."""
    try:
        # The process name in parentheses may contain anything, so split after the last parenthesis.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def unsupported_reason(probe: Path) -> str:
    """Return why nodes cannot have namespaces on this machine, or an empty string if they can.

    The check creates namespaces whose root is in the directory `probe`.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces require Linux and root privileges"
    points = namespace_script.machine_mounts(Path("/proc/self/mountinfo").read_text())
    separate = [point for point in points if point in _REPLACED]
    if separate:
        return f"{separate[0]} is a separate file system"
    for name in ("upper", "work", "merged"):
        (probe / name).mkdir(parents=True, exist_ok=True)
    attempt = (
        "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work,index=off,redirect_dir=off merged"
        " && mount -t proc proc merged/proc && cd merged && pivot_root . . && umount -l ."
    )
    command = [
        "unshare",
        *_NAMESPACES,
        "--fork",
        "sh",
        "-c",
        f"{attempt} && exec {' '.join(namespace_script.DROP_PRIVILEGES)} true",
    ]
    try:
        done = subprocess.run(
            command, cwd=probe, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return str(err)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or "creating namespaces failed"
