"""The daemon that runs a node's part of a run: it waits for the gang, starts the ranks, and writes the status."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import time
from typing import Any

from .. import files, masking, proc
from ..containers.run_container import RankContainer
from ..files import now as utc_now
from ..transport import TransportWatch, find_plugin_problem
from ..untrusted_data import MALFORMED, AgentError
from . import authorized_keys, status
from .logs import LogTimes
from .ranks import RankProcesses, Watchdog
from .sockets import join_gang
from .spec import StartSpec, log_paths
from .verdict import Report, read_cancel

REQUEST = "stop-request.json"
"""File in which `stop` passes the signal and grace period to the daemon."""
_TICK_S = 0.2
_RESERVE = ".reserve"
_RESERVE_BYTES = 64 * 1024
_SAVE_AGAIN_S = 600.0


class Supervisor:
    """Supervisor of a node's ranks. It has one thread, because the forking thread's exit triggers the death signal."""

    def __init__(self, spec: StartSpec) -> None:
        """Prepare this node's part of the run, including its container.

        The gang forms only after every node has started its container.
        """
        self._spec = spec
        self._selector = selectors.DefaultSelector()
        proc.DeathSignal().adopt_orphans()
        self._container = None if spec.container is None else RankContainer(spec.container)
        self._watchdog = Watchdog(os.urandom(16).hex(), self._container, spec)
        self._ranks = RankProcesses(spec, self._watchdog, self._container)
        self._transport = TransportWatch(spec.transport, spec.run_dir, log_paths(spec), self._container)
        self._times = LogTimes(log_paths(spec))
        self._gang = join_gang(spec, self._selector)
        if self._container is not None:
            _create(self._container, self._watchdog, spec, self._transport)
        masking.write(spec.run_dir, spec.secrets)
        authorized_keys.authorize(spec)
        self._state = "starting"
        self._started = False
        self._stopping = False
        self._cancel: dict[str, Any] | None = None
        self._saved = ""
        self._beat_at = 0.0
        self._identity = proc.process_identity(os.getpid())
        self._created_utc = utc_now()
        self._ended_utc: str | None = None
        self._catch_signals()
        _reserve(spec.run_dir)
        self._save()

    def run(self) -> None:
        """Run until the gang has finished and no other node needs this node."""
        while self._state not in status.FINAL:
            self._turn()
            self._ranks.reap()
            self._times.record(time.monotonic())
            self._follow_verdict(time.monotonic())
            self._save_if_changed()
        self._linger()
        self._gang.close()

    def _turn(self) -> None:
        """Wait at most one tick for events, then process them."""
        for key, _ in self._selector.select(self._wait_s()):
            key.data()
        self._gang.tick(self._report(), time.monotonic())

    def _wait_s(self) -> float:
        kill_at = self._ranks.kill_at
        # Check often while ranks are being stopped, because the exit of a rank's child process causes no event.
        return _TICK_S if kill_at is None else min(0.05, _TICK_S)

    def _report(self) -> Report:
        now = time.monotonic()
        return {
            "done": self._started and self._ranks.done,
            "failure": self._failure(now) if self._started else None,
            "cancel": self._cancel,
            "ended": self._state in status.FINAL,
        }

    def _failure(self, now: float) -> dict[str, Any] | None:
        # Read once more when the ranks have ended: a short run may have written its first line just before.
        self._transport.read(now, last=self._ranks.done and not self._stopping)
        index = self._spec.node_index
        return self._ranks.first_failure(index, now) or self._transport.failure(index, now)

    def _follow_verdict(self, now: float) -> None:
        verdict = self._gang.verdict
        if verdict is None:
            if self._gang.formed and not self._started:
                self._start()
        elif not self._stopping:
            self._stopping = True
            self._ranks.stop(verdict["signal"], verdict["grace_s"], now)
        else:
            self._ranks.enforce(now)
            if self._ranks.gone(now):
                self._finish(verdict["state"])

    def _start(self) -> None:
        self._started = True
        self._state = "running"
        self._ranks.start()

    def _finish(self, state: str) -> None:
        self._watchdog.kill_marked_processes()  # those that left their rank's session
        if self._container is not None:
            self._container.remove()
        authorized_keys.revoke(self._spec)
        self._times.record(time.monotonic(), last=True)  # before secrets are overwritten, which modifies the logs
        masking.finish(self._spec.run_dir, log_paths(self._spec))
        self._state, self._ended_utc = state, utc_now()
        deadline = time.monotonic() + _SAVE_AGAIN_S
        while not self._save() and time.monotonic() < deadline:
            time.sleep(1.0)
        _release(self._spec.run_dir)

    def _linger(self) -> None:
        while not self._gang.released(time.monotonic()):
            self._turn()
        if self._container is None or self._container.remove():
            self._watchdog.dismiss()  # if the container remains, the watchdog stays and removes it later

    def _save_if_changed(self) -> None:
        now = time.monotonic()
        if repr(self._status()) != self._saved:
            self._save()
        elif now - self._beat_at >= self._spec.limits.heartbeat_s:
            self._beat_at = now
            _touch(status.status_path(self._spec.run_dir))

    def _save(self) -> bool:
        """Write the status. If the disk is full, free the reserved space and return False. The caller then retries."""
        current = self._status()
        try:
            files.write_json(status.status_path(self._spec.run_dir), current)
        except OSError as error:
            if not self._saved or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _release(self._spec.run_dir)
            return False
        self._saved = repr(current)
        self._beat_at = time.monotonic()
        return True

    def _status(self) -> dict[str, Any]:
        verdict = self._gang.verdict
        return {
            "run_id": self._spec.run_id,
            "node_index": self._spec.node_index,
            "state": self._state,
            "ranks": [rank.as_json() for rank in self._ranks.ranks],
            "transport": self._transport.as_json(),
            "first_failure": None if verdict is None else verdict["first_failure"],
            "created_utc": self._created_utc,
            "ended_utc": self._ended_utc,
            "lost_s": self._spec.limits.lost_s,
            "agent": self._identity,
        }

    def _catch_signals(self) -> None:
        read, write = socket.socketpair()
        for end in (read, write):
            end.settimeout(0)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup = (read, write)
        self._selector.register(read, selectors.EVENT_READ, lambda: read.recv(4096))

    def _on_stop(self, *_: object) -> None:
        default = {"signal": "SIGTERM", "grace_s": self._spec.limits.grace_s}
        try:
            request = files.read_json(os.path.join(self._spec.run_dir, REQUEST)) or {}
            self._cancel = read_cancel({**default, **request})
        except MALFORMED:  # stop with the default signal if the file is malformed
            self._cancel = default


def _create(container: RankContainer, watchdog: Watchdog, spec: StartSpec, transport: TransportWatch) -> None:
    watchdog.hold(exists=True)
    try:
        container.create(spec.run_dir)
        _check_plugin(container, spec, transport)
    finally:
        watchdog.hold(exists=container.exists)


def _check_plugin(container: RankContainer, spec: StartSpec, transport: TransportWatch) -> None:
    """Look for NCCL's EFA plugin in the container, with the environment of the first rank."""
    check = () if spec.container is None else spec.container.plugin_check
    if not check or not spec.ranks:
        return
    try:
        problem = find_plugin_problem(check, spec.run_dir, {**spec.ranks[0].env, **spec.secrets})
        transport.take_plugin_problem(problem)
    except (AgentError, OSError):
        container.remove()
        raise


def _touch(path: str) -> None:
    """Update the status file's modification time as a heartbeat. This does not need disk space."""
    os.utime(path)


def _reserve(folder: str) -> None:
    """Reserve disk space for the final status, in case the ranks fill the disk."""
    handle = os.open(os.path.join(folder, _RESERVE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(b"\0" * _RESERVE_BYTES)


def _release(folder: str) -> None:
    try:
        os.unlink(os.path.join(folder, _RESERVE))
    except FileNotFoundError:
        return
