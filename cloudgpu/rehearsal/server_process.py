"""The server's process: one starter at a time, a start that outlives its starter, and whether it still runs."""

import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloudgpu.paths import Home, unwritable
from cloudgpu.rehearsal.layout import RehearsalFiles

_LAST_LINES = 15
_HEARD: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A shell starts what it puts in the background deaf to Ctrl-C, and nohup to hang-ups: nodes must not inherit that."""


@contextmanager
def one_starter(files: RehearsalFiles) -> Iterator[None]:
    """Let one process at a time start a server; a killed starter leaves no lock behind."""
    try:
        files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = files.start_lock.open("wb")
    except OSError as err:
        raise unwritable(files.root, err) from err
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def options(envs: Path | None, idle_minutes: float | None) -> list[str]:
    """Of the server's command line; what is None is left to it."""
    chosen = [] if envs is None else ["--envs", str(envs.absolute())]
    return chosen if idle_minutes is None else [*chosen, "--idle-minutes", str(idle_minutes)]


def spawn(home: Home, files: RehearsalFiles, given: Sequence[str]) -> int:
    """Start the server in a session of its own, so that neither Ctrl-C nor the end of this process reaches it.

    Raises:
        StateError: Its log cannot be written.
    """
    try:
        log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as err:
        raise unwritable(files.log, err) from err
    command = [sys.executable, "-m", "cloudgpu.rehearsal.server", "--home", str(home.root.absolute()), *given]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    try:
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True, setsigdef=_HEARD)
    finally:
        os.close(log)


def last_lines(log: Path) -> str:
    """What the server wrote last, in one line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it wrote nothing"
    return " | ".join(lines[-_LAST_LINES:]) or "it wrote nothing"


def alive(pid: int) -> bool:
    """Whether the process runs. A dead one that nobody reaped counts as dead: a long `train` may be its parent."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _unreaped(pid)


def _unreaped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False  # gone by now, or a system without /proc: the next look tells
    return state in {"Z", "X"}
