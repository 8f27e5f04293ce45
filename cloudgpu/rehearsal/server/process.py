"""The server's process: one starter at a time, a start that outlives its starter, and whether it still runs."""

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloudgpu.files import open_descriptor, open_for_appending, open_for_reading
from cloudgpu.paths import Home, unwritable
from cloudgpu.rehearsal.layout import RehearsalFiles

_LAST_LINES = 15
_POLL_S = 0.05
_LAST_BYTES = 1 << 16
_HEARD: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A shell starts what it puts in the background deaf to Ctrl-C, and nohup to hang-ups: nodes must not inherit that."""


@contextmanager
def one_starter(files: RehearsalFiles) -> Iterator[None]:
    """Let one process at a time start a server; a killed starter leaves no lock behind."""
    try:
        files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_for_appending(files.start_lock)
    except OSError as err:
        raise unwritable(files.root, err) from err
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def holder(files: RehearsalFiles) -> int | None:
    """Return the process that holds the server's lock, 0 where it has not said who it is; None where nobody holds it.

    This is known of a server even where its endpoint file or the keys to talk to it are damaged.
    """
    try:
        lock = open_descriptor(files.server_lock, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    else:
        return None
    finally:
        os.close(lock)


def end(pid: int, limit_s: float) -> bool:
    """End a server that does not answer; return True once it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + limit_s / 2
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not alive(pid):
            return True
    return False


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
        log = open_descriptor(files.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
        with open_for_reading(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read(_LAST_BYTES).decode(errors="replace").splitlines()
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
