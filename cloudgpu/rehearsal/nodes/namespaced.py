"""A node in namespaces of its own: root, processes, hostname and IPC. Linux, as root."""

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes.boot.base_image import Layer
from cloudgpu.rehearsal.nodes.mounts import namespace_script

_BOOT_TIMEOUT_S = 30.0
_DEATH_TIMEOUT_S = 20.0
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_NAMESPACES = ("--mount", "--uts", "--ipc", "--pid")
_ENTER = 'cd "$0" 2>/dev/null || cd /; exec "$@"'
_REPLACED = ("/usr", "/bin", "/sbin", "/lib", "/etc", "/opt", "/var", "/var/log", "/usr/bin", "/usr/sbin", "/usr/local")


class CagedBody:
    """One node's namespaces, held open by its init."""

    def __init__(self, cage: namespace_script.Cage) -> None:
        """Nothing runs yet.

        Args:
            cage: Where the parts of the root come from.
        """
        self._cage = cage
        self._pidfd = -1
        self.process = (0, 0)
        self.layer = Layer(cage.disk / "upper", "", cage.surroundings)

    def environment(self) -> dict[str, str]:
        """The variables that every process of the node starts with."""
        return dict(self._cage.surroundings.environment) | {"PATH": self._cage.surroundings.path}

    def limit_home(self, kib: int) -> None:
        """At the next boot the login user's home has room for so much."""
        self._cage = replace(self._cage, home_kib=kib)

    def home(self, user: str) -> str:
        """The login user's home as the node sees it."""
        return f"/home/{user}"

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """What to run on the machine so that `argv` runs in the node."""
        enter = [*self.entering(), *namespace_script.LIMITED]
        session = ["setsid", "--ctty"] if terminal else ["setsid"]
        return [*enter, *session, "/bin/sh", "-c", _ENTER, cwd, *argv]

    def entering(self) -> list[str]:
        """What stands before a command of this host's that keeps its rights in the node."""
        return ["nsenter", "--target", str(self.process[0]), *_NAMESPACES, "--"]

    @property
    def take_terminal(self) -> None:
        """Nothing: `setsid --ctty` does it inside, and could not if the terminal had an owner already."""

    def open_terminal(self) -> tuple[int, int]:
        """A terminal of the node's own `/dev/pts`, so that `tty` and `/dev/tty` work inside.

        Raises:
            OSError: None is left, or the node is gone.
        """
        master = os.open(f"/proc/{self.process[0]}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
        try:
            fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
            return master, fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
        except BaseException:
            os.close(master)
            raise

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal the group of the one child of `nsenter`, which leads a session of its own."""
        try:
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.killpg(int(child), number)
        except (FileNotFoundError, ProcessLookupError):
            return

    async def power_on(self) -> None:
        """Start the init and wait until its root is built.

        Raises:
            RehearsalError: The machine does not permit it.
        """
        self._prepare()
        script = self._cage.disk / "init.sh"
        script.write_text(namespace_script.init_script(self._cage))
        process = await asyncio.create_subprocess_exec(
            "unshare", *_NAMESPACES, "--fork", "--kill-child", "/bin/sh", str(script),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, env={"PATH": self._cage.surroundings.path, "LC_ALL": "C"},
        )  # fmt: skip
        try:
            said = await asyncio.wait_for(_until_ready(process), _BOOT_TIMEOUT_S)
        except (RehearsalError, TimeoutError) as err:
            if process.returncode is None:
                process.kill()
            raise RehearsalError(f"a node's namespaces could not be made: {str(err) or 'no answer in time'}") from err
        self._take(said)

    def adopt(self, process: tuple[int, int]) -> bool:
        """Take over the init of an earlier host; False when it is gone, or its number is somebody else's now."""
        if process[0] == 0 or _started(process[0]) != process[1]:
            return False
        try:
            self._take(process[0])
        except ProcessLookupError:
            return False
        return self.process == process

    async def ended(self) -> None:
        """Wait until the init ends."""
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
        """Kill the init; the kernel kills and reaps everything in its namespace before the init is gone.

        Raises:
            RehearsalError: The kernel did not end it in time.
        """
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait_for(self.ended(), _DEATH_TIMEOUT_S)
        except ProcessLookupError:
            pass
        except TimeoutError as err:
            raise RehearsalError(f"the processes of a node (init {self.process[0]}) did not end") from err
        os.close(self._pidfd)
        self._pidfd, self.process = -1, (0, 0)

    def resident_files(self) -> list[Path]:
        """The `/proc` folders of every process in the node's namespace."""
        try:
            own = str(Path(f"/proc/{self.process[0]}/ns/pid").readlink())
        except OSError:
            return []
        return [folder for folder in Path("/proc").glob("[0-9]*") if _link(folder / "ns" / "pid") == own]

    def _prepare(self) -> None:
        disk = self._cage.disk
        for name in ("upper", "work", "merged", "own", "own/home"):
            (disk / name).mkdir(exist_ok=True)
        laid = disk / "upper" / "home"
        # At the first boot only: the login user's home moves where the node finds it as a mount.
        if not laid.is_symlink() and laid.is_dir() and not any((disk / "own" / "home").iterdir()):
            for home in laid.iterdir():
                home.rename(disk / "own" / "home" / home.name)

    def _take(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)
        self.process = (pid, _started(pid))


async def _until_ready(process: asyncio.subprocess.Process) -> int:
    """The number of the init, once it says `ready`."""
    assert process.stdout is not None  # noqa: S101 - asked for by the caller
    lines: list[str] = []
    pid = 0
    while line := (await process.stdout.readline()).decode(errors="replace").strip():
        if line == "ready":
            return pid
        if line.startswith("pid "):
            pid = int(line.split()[1])
        lines.append(line)
    raise RehearsalError("; ".join(lines[-3:]) or "its init ended")


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none."""
    try:
        # The name in parentheses may hold anything; what follows the last one does not.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def refusal(probe: Path) -> str:
    """Why nodes cannot have namespaces here, or nothing when they can. Tries it, in an empty folder `probe`.

    Raises:
        OSError: The folder cannot be written.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need Linux and the superuser"
    points = namespace_script.machine_mounts(Path("/proc/self/mountinfo").read_text())
    separate = [point for point in points if point in _REPLACED]
    if separate:
        return f"{separate[0]} is a file system of its own"
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
        f"{attempt} && exec {' '.join(namespace_script.LIMITED)} true",
    ]
    try:
        done = subprocess.run(
            command, cwd=probe, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return str(err)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or "the attempt failed"
