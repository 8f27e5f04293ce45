"""Start, find and kill the server process, which outlives the command that starts it."""

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import RehearsalError
from cloudgpu.files import make_private_directory, open_descriptor, open_for_appending, open_for_reading
from cloudgpu.paths import Home, ensure_writable, unwritable_error
from cloudgpu.processes import this_system
from cloudgpu.rehearsal.layout import FAILURE_FORMAT, RehearsalFiles
from cloudgpu.text import command

START_BYTES: Final = 1 << 16
"""Free disk space, in bytes, required to start the server, which writes less than this before the first API call."""
STOP_LIMIT_S: Final = 60.0
"""Time limit for the exit of a server that is stopping and of its node host."""
POLL_S: Final = 0.02
_LOG_TAIL_LINES = 15
_LOCK_BYTES = 512
_LOG_TAIL_BYTES = 1 << 16
_RESET_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals to reset to their default action, because a background job or `nohup` may have set them to be ignored."""


@contextmanager
def hold_start_lock(files: RehearsalFiles) -> Iterator[None]:
    """Hold the lock that a process needs to start a server; the kernel releases the lock if the process dies."""
    try:
        make_private_directory(files.root)
        lock = open_for_appending(files.start_lock)
    except OSError as err:
        raise unwritable_error(files.root, err) from err
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def running_server_pid(files: RehearsalFiles) -> int | None:
    """Return the running server's pid, 0 if the server has not written it yet, or None if no server is running.

    The pid is read from the lock file, so this works even if the endpoint file or the keys are damaged.
    """
    try:
        lock = open_descriptor(files.server_lock, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_here(os.pread(lock, _LOCK_BYTES, 0).decode(errors="replace"), files)
    else:
        return None
    finally:
        os.close(lock)


def _pid_here(text: str, files: RehearsalFiles) -> int:
    """Return the pid in a lock file, or 0 if the file is empty."""
    pid, system, host = (*text.split(), "", "", "")[:3]
    if not this_system().shares_processes(system):
        message = f"the rehearsal server is on another machine or in another container, {host}: {files.root}"
        raise RehearsalError(message, hint="use the rehearsal cloud there, or set another CLOUDGPU_HOME here")
    return int(pid) if pid.isascii() and pid.isdigit() else 0


def kill_server(pid: int, limit_s: float) -> bool:
    """Kill a server that does not respond. Return True if it exits within `limit_s` seconds, else False."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + limit_s / 2
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not is_alive(pid):
            return True
    return False


def server_options(envs: Path | None, idle_minutes: float | None) -> list[str]:
    """Return the server's command-line options. For an argument that is None, the server uses its default."""
    arguments = [] if envs is None else ["--envs", str(envs.absolute())]
    return arguments if idle_minutes is None else [*arguments, "--idle-minutes", str(idle_minutes)]


def spawn(home: Home, files: RehearsalFiles, arguments: Sequence[str]) -> int:
    """Start the server in a new session, so that Ctrl-C and the exit of this process do not affect it.

    Return its pid.
    """
    try:
        log = open_descriptor(files.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError as err:
        raise unwritable_error(files.log, err) from err
    command = [sys.executable, "-m", "cloudgpu.rehearsal.server", "--home", str(home.root.absolute()), *arguments]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    try:
        return os.posix_spawn(
            sys.executable, command, os.environ, file_actions=actions, setsid=True, setsigdef=_RESET_SIGNALS
        )
    finally:
        os.close(log)


def wait_while(condition: Callable[[], bool], clock: Clock, message: str, files: RehearsalFiles) -> None:
    """Wait while a condition is true."""
    deadline = clock.monotonic() + STOP_LIMIT_S
    while condition():
        if clock.monotonic() > deadline:
            raise RehearsalError(
                f"{message} within {STOP_LIMIT_S:.0f} s: {last_log_lines(files.log)}",
                hint=command("cloudgpu", "rehearsal", "reset"),
            )
        clock.sleep(POLL_S)


def last_log_lines(log: Path) -> str:
    """Return the server log's last lines, joined into one line, or `no output` if the log is empty or unreadable."""
    try:
        with open_for_reading(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return "no output"
    return " | ".join(lines[-_LOG_TAIL_LINES:]) or "no output"


def is_alive(pid: int) -> bool:
    """Return True if the process is running. Reap the process if it is an exited child of this process."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False  # the process just exited, which the next check detects, or the system has no /proc
    return state in {"Z", "X"}


def start_error(files: RehearsalFiles) -> RehearsalError:
    """Return the error that the server saved before it exited, or an error with the last lines of its log."""
    try:
        failure = FAILURE_FORMAT.read(files.failure)
        return RehearsalError(str(failure["message"]), hint=str(failure["hint"]))
    except (OSError, ValueError, KeyError, TypeError):
        ensure_writable(files.root, START_BYTES)
        message = f"the rehearsal server exited: {last_log_lines(files.log)}"
        return RehearsalError(message, hint=f"see {command(str(files.log))}")
