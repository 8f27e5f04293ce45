"""Run commands as root with a time limit, and kill the processes that they leave behind.

A mount program forks a server into a new session. This process adopts such orphans, so that it can find and kill every
process of a mount that hangs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Iterator, Sequence

from . import proc

_SHOWN = 400
_AFTER_KILL_S = 5.0
_POLL_S = 0.05
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUDO = ("sudo", "-n")


@dataclass(frozen=True)
class CommandResult:
    """Exit code of a command and the end of its output.

    The exit code is 124 if the command timed out, and 127 if it could not be started.
    """

    code: int
    text: str
    timed_out: bool = False


def run(argv: Sequence[str], within_s: float) -> CommandResult:
    """Run a command as root, and kill its process group if it has not exited after `within_s` seconds."""
    command = [*([] if os.geteuid() == 0 else _SUDO), *argv]
    env = {**os.environ, "PATH": _search_path()}
    # The output goes to a file, because a server that the command leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )
        except OSError as error:
            return CommandResult(127, f"cannot run {command[0]}: {error.strerror}")
        try:
            code, timed_out = child.wait(within_s), False
        except subprocess.TimeoutExpired:
            code, timed_out = 124, True
            _kill_group(child)
        return CommandResult(code, _last_output(output), timed_out)


def has_program(program: str) -> bool:
    """Return True if a program is on the PATH that `run` sets for commands."""
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in _search_path().split(":"))


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Adopt orphaned descendants as children of this process, during the block and after it. Linux only."""
    proc.DeathSignal().adopt_orphans()
    yield


def descendants() -> set[int]:
    """Return the PIDs of all descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            parents.setdefault(_parent(int(entry)), []).append(int(entry))
    pids: set[int] = set()
    to_visit = [os.getpid()]
    while to_visit:
        for child in parents.get(to_visit.pop(), []):
            if child not in pids:
                pids.add(child)
                to_visit.append(child)
    return pids


def kill_new_descendants(before: set[int]) -> None:
    """Kill every descendant of this process that is not in `before`, and wait up to five seconds for them to exit.

    The processes may belong to root, and may fork while they are being killed.
    """
    deadline = time.monotonic() + _AFTER_KILL_S
    while (
        remaining := {pid for pid in descendants() - before if proc.start_mark(pid)}
    ) and time.monotonic() < deadline:
        for pid in remaining:
            _kill(pid)
        time.sleep(_POLL_S)
        _reap()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        subprocess.run([*_SUDO, "kill", "-KILL", str(pid)], capture_output=True, check=False)


def _reap() -> None:
    """Reap adopted processes that have exited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except PermissionError:
        subprocess.run([*_SUDO, "kill", "-KILL", "--", f"-{child.pid}"], capture_output=True, check=False)
    except ProcessLookupError:
        pass
    try:
        child.wait(_AFTER_KILL_S)
    except subprocess.TimeoutExpired:
        return  # the process is blocked in the kernel, and a lazy unmount releases it


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _search_path() -> str:
    own = os.environ.get("PATH", "")
    return f"{own}:{_PATH}" if own else _PATH


def _last_output(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    return " / ".join(line for line in lines if line)[-_SHOWN:]
