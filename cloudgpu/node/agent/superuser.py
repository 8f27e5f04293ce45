"""Commands of the superuser with a time limit, and what they leave running: found again and ended.

A program that mounts forks a server into a session of its own. This process takes such orphans in, so that a mount
that hangs is ended whole.
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
_LOOK_AGAIN_S = 0.05
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUDO = ("sudo", "-n")


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `text` holds its last words."""

    code: int
    text: str
    timed_out: bool = False


def run(argv: Sequence[str], within_s: float) -> CommandResult:
    """Run it as the superuser and wait, but not longer than `within_s`; then its whole group is killed."""
    command = [*([] if os.geteuid() == 0 else _SUDO), *argv]
    env = {**os.environ, "PATH": _search_path()}
    # A file, not a pipe: a server that the command leaves behind would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )
        except OSError as error:
            return CommandResult(127, f"cannot run {command[0]}: {error.strerror}")
        try:
            code, late = child.wait(within_s), False
        except subprocess.TimeoutExpired:
            code, late = 124, True
            _kill_group(child)
        return CommandResult(code, _last_output(output), late)


def has(program: str) -> bool:
    """Whether a program is on the superuser's PATH."""
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in _search_path().split(":"))


@contextmanager
def orphans_adopted() -> Iterator[None]:
    """While it lasts, processes whose parent ends become children of this one. Linux only."""
    proc.DeathSignal().adopt_orphans()
    yield


def descendants() -> set[int]:
    """Every process that comes from this one."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            parents.setdefault(_parent(int(entry)), []).append(int(entry))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def end(before: set[int]) -> None:
    """Kill every process that comes from this one and is not among these; returns when they are gone.

    They may be the superuser's, and may fork meanwhile.
    """
    deadline = time.monotonic() + _AFTER_KILL_S
    while (left := {pid for pid in descendants() - before if proc.start_mark(pid)}) and time.monotonic() < deadline:
        for pid in left:
            _kill(pid)
        time.sleep(_LOOK_AGAIN_S)
        _reap()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        subprocess.run([*_SUDO, "kill", "-KILL", str(pid)], capture_output=True, check=False)


def _reap() -> None:
    """Take the end of what was adopted."""
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
        return  # it waits in the kernel; unmounting lazily lets it go


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
