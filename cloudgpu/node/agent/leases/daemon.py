"""The lease daemon: stops the cluster's processes on this host when the lease expires.

The daemon needs no connection to a caller, no server and no special permissions. A second daemon for the same lease
exits immediately.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress

from .. import files, proc
from . import store, termination

_POLL_S = 5.0
_LOCK = "warden.lock"


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
        daemon_process = files.read_json(os.path.join(home, termination.DAEMON_FILE))
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
        files.write_json(os.path.join(home, termination.DAEMON_FILE), proc.process_identity(os.getpid()))
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
        time.sleep(min(left_s, _POLL_S))
    print("the lease has expired: stopping the cluster's processes", flush=True)  # noqa: T201 - goes to the log
    termination.stop_runs(home, grace_s=10.0)
    termination.remove_containers(home)
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
