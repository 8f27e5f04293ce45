"""Stop everything that a cluster runs on this host and verify it, when its lease ends; and the lease daemon.

The daemon stops the cluster's processes when the lease expires. It needs no connection to a caller, no server and no
special permissions. A second daemon for the same lease exits immediately.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator

from .. import files, proc
from ..containers.run_container import setup_container_name, setup_image_name
from ..gang import status
from ..gang.supervisor import REQUEST
from ..untrusted_data import AgentError
from . import store

_POLL_S = 0.05
_EXTRA_S = 5.0
_DOCKER_S = 60.0
_LAST_LINES_S = 2.0
DAEMON_FILE = "warden.json"
"""File with the process identity of the lease daemon."""
_DAEMON_POLL_S = 5.0
_LOCK = "warden.lock"


def run_dirs(home: str) -> list[str]:
    """Return the run directories of a cluster."""
    return sorted(str(path) for path in Path(home, ".cloudgpu", "runs").glob("*") if path.is_dir())


def stop_runs(home: str, *, grace_s: float) -> list[int]:
    """Ask every run to stop, wait for the runs up to five seconds beyond the grace period, then kill what remains.

    Return the PIDs of processes that are still running.
    """
    asked = [folder for folder in run_dirs(home) if _request_stop(folder, grace_s)]
    deadline = time.monotonic() + grace_s + _EXTRA_S
    while any(_running(folder) for folder in asked) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for _ in range(100):
        left = list(_processes(home))
        if not left:
            return []
        for pid in left:
            _kill(pid)
        time.sleep(_POLL_S)
    return list(_processes(home))


def kill_leftover_processes(home: str) -> list[int]:
    """Kill agent commands and transfers that outlived their connections. Return the PIDs that are still running.

    The processes may be suspended or waiting for input that never arrives. A process that is about to exit, such as
    `follow` after the end of its run, gets two seconds to deliver its last line.
    """
    deadline = time.monotonic() + _LAST_LINES_S
    while list(_leftovers(home)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for _ in range(100):
        left = list(_leftovers(home))
        if not left:
            return []
        for pid in left:
            _kill(pid)
        time.sleep(_POLL_S)
    return list(_leftovers(home))


def _leftovers(home: str) -> Iterator[int]:
    """Yield the PIDs of this user's processes that have no terminal and have a path in `home` on their command line."""
    excluded = {*_ancestors(), _daemon_pid(home)}
    inside = os.fsencode(home) + b"/"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = entry.stat().st_uid == os.getuid() and int(entry.name) not in excluded
            words = (entry / "cmdline").read_bytes().split(b"\0") if mine else []
            if any(word.startswith(inside) for word in words) and not _has_terminal(entry):
                yield int(entry.name)
        except OSError:
            continue


def _ancestors() -> Iterator[int]:
    """Yield the PIDs of this process and its ancestors."""
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = _parent(pid)


def _parent(pid: int) -> int:
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except (OSError, ValueError, IndexError):
        return 0


def _has_terminal(entry: Path) -> bool:
    """Return True if the process has a terminal, as an editor or `tail` on a log does."""
    return entry.joinpath("stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[4] != "0"


def _daemon_pid(home: str) -> int:
    """Return the PID of the lease daemon, which is stopped last, or 0 if the daemon is not running."""
    try:
        daemon_process = files.read_json(os.path.join(home, DAEMON_FILE))
        return int(daemon_process["pid"]) if daemon_process is not None and proc.is_alive(daemon_process) else 0
    except (ValueError, KeyError, TypeError):
        return 0


def remove_containers(home: str) -> list[str]:
    """Remove the containers of a cluster's runs and setups. Return the names of those that remain.

    A container is a child of the Docker engine, so it can outlive the run's processes.
    """
    docker = shutil.which("docker")
    if docker is None:
        return []
    owner = f"{os.getuid()}:{os.getgid()}"
    for name in _containers(docker, home):
        # A setup that was killed may have left files of root in the cluster's directory.
        _docker([docker, "exec", "--user", "0", name, "chown", "-R", "-h", owner, home])
        _docker([docker, "rm", "--force", "--volumes", name])
    return _containers(docker, home)


def remove_images(home: str) -> list[str]:
    """Remove the local images that the setups of a cluster made. Return the names of those that remain."""
    docker = shutil.which("docker")
    if docker is None:
        return []
    for name in _images(docker, home):
        _docker([docker, "rmi", name])
    return _images(docker, home)


def _containers(docker: str, home: str) -> list[str]:
    names: list[str] = []
    # launch/containers.py names a container after its run and node.
    patterns = [f"^/?cloudgpu-{re.escape(os.path.basename(folder))}-[0-9]+$" for folder in run_dirs(home)]
    patterns += [f"^/?{re.escape(setup_container_name(key))}$" for key in _setups(home)]
    for pattern in patterns:
        names += _docker([docker, "ps", "--all", "--format", "{{.Names}}", "--filter", f"name={pattern}"])
    return names


def _images(docker: str, home: str) -> list[str]:
    line = [docker, "images", "--format", "{{.Repository}}:{{.Tag}}"]
    return [name for key in _setups(home) for name in _docker([*line, setup_image_name(key)])]


def _setups(home: str) -> list[str]:
    """Return the keys of a cluster's setups."""
    return sorted(path.name for path in Path(home, ".cloudgpu", "setup").glob("*") if path.is_dir())


def _docker(argv: list[str]) -> list[str]:
    """Return the words that a Docker command prints, or an empty list if this user cannot use Docker."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_DOCKER_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", "replace").split()


def _request_stop(folder: str, grace_s: float) -> bool:
    known = _status(folder)
    if known is None or known["state"] in status.FINAL or not proc.is_alive(known["agent"]):
        return False
    files.write_json(os.path.join(folder, REQUEST), {"signal": "SIGTERM", "grace_s": grace_s})
    os.kill(int(known["agent"]["pid"]), signal.SIGTERM)
    os.kill(int(known["agent"]["pid"]), signal.SIGCONT)
    return True


def _running(folder: str) -> bool:
    known = _status(folder)
    return known is not None and proc.is_alive(known["agent"])


def _status(folder: str) -> dict | None:  # type: ignore[type-arg]  # Python 3.8
    try:
        return status.read_status_if_any(folder)
    except AgentError:
        return None


def _processes(home: str) -> Iterator[int]:
    """Yield the PIDs of this user's processes whose run ID or working directory belongs to a run of this cluster."""
    marks = [f"CLOUDGPU_RUN_ID={os.path.basename(folder)}".encode() for folder in run_dirs(home)]
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid not in (os.getpid(), os.getppid()) and _belongs(entry, marks, os.path.join(home, ".cloudgpu", "runs")):
            yield pid


def _belongs(entry: Path, marks: list[bytes], runs: str) -> bool:
    try:
        if entry.stat().st_uid != os.getuid() or not proc.start_mark(int(entry.name)):
            return False
        within = os.readlink(entry / "cwd").startswith(runs + os.sep)
        return within or any(mark in (entry / "environ").read_bytes().split(b"\0") for mark in marks)
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def ensure_daemon_running(token: str, home: str) -> None:
    """Start a lease daemon for this lease unless it already has one. Return without waiting for the daemon."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _run_daemon(token, home)
        os._exit(0)
    os.waitpid(child, 0)


def stop_daemon(home: str) -> None:
    """Kill the lease daemon of a cluster whose directory is about to be deleted."""
    try:
        daemon_process = files.read_json(os.path.join(home, DAEMON_FILE))
    except ValueError:
        return
    if daemon_process is not None and proc.is_alive(daemon_process) and int(daemon_process["pid"]) != os.getpid():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(daemon_process["pid"]), signal.SIGKILL)


def _run_daemon(token: str, home: str) -> None:
    """Run the lease daemon. Never returns."""
    try:
        lock = os.open(os.path.join(home, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files.write_json(os.path.join(home, DAEMON_FILE), proc.process_identity(os.getpid()))
        _detach(home)
        _watch(token, home)
    except BlockingIOError:
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the process ends here, with its traceback in the log
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _watch(token: str, home: str) -> None:
    while True:
        lease = store.find_own_lease(token, home)
        if lease is None:
            return
        left_s = lease.expires_epoch_s - time.time()
        if left_s <= 0:
            break
        time.sleep(min(left_s, _DAEMON_POLL_S))
    print("the lease has expired: stopping the cluster's processes", flush=True)  # noqa: T201 - goes to the log
    stop_runs(home, grace_s=10.0)
    remove_containers(home)
    with store.lease_lock():
        current = store.find_own_lease(token, home)
        if current is not None and current.expired:
            store.remove_lease(token, home)


def _detach(home: str) -> None:
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(home, "warden.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number, handle in ((0, null), (1, log), (2, log)):
        os.dup2(handle, number)
    with suppress(OSError):
        os.close(null)
        os.close(log)
