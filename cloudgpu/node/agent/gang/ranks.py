"""A node's ranks, each a process in a session of its own, and the watchdog that stops them if the agent dies."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from .. import masking, proc
from ..containers.run_container import RankContainer, why_not_started
from ..files import now as utc_now
from ..proc import WatchdogProcess
from .authorized_keys import revoke
from .spec import RankSpec, StartSpec, log_paths
from .status import log_path
from .verdict import failure_record

_CANNOT_START = 127
"""Exit code of a rank whose program cannot be started. Shells use it for a command that is not found."""
_SWEEP_GRACE_S = 2.0
"""Grace period, in seconds, for processes that an exited rank left running."""
_UNKILLABLE_S = 10.0
"""Seconds after which a process that survives SIGKILL is abandoned, because it hangs in the kernel."""


class Watchdog(WatchdogProcess):
    """A process that kills the ranks, removes their container and revokes the run's SSH key if the agent dies."""

    def __init__(self, mark: str, container: RankContainer | None = None, spec: StartSpec | None = None) -> None:
        self.mark = mark
        super().__init__(lambda messages: _clean_up(messages, mark, container, spec))

    def watch(self, group: int) -> None:
        """Add a process group to kill if the agent dies."""
        self.send(b"%d" % group)

    def hold(self, *, exists: bool) -> None:
        """Tell the watchdog to remove the container if the agent dies (`exists=True`), or not to remove it.

        The watchdog must not remove a container by name once another attempt may have reused the name.
        """
        self.send(b"hold" if exists else b"free")

    def kill_marked_processes(self) -> None:
        """Kill every process that has the run's mark. The watchdog itself does not have the mark."""
        proc.kill_marked(self.mark)


def _clean_up(messages: list[bytes], mark: str, container: RankContainer | None, spec: StartSpec | None) -> None:
    """Kill the ranks, revoke the run's SSH key, and remove its container and its secrets from the logs."""
    for group in (int(word) for word in messages if word.isdigit()):
        proc.signal_group(group, signal.SIGKILL)
    proc.kill_marked(mark)
    if spec is not None:
        revoke(spec)
    last_was_hold = [word for word in messages if not word.isdigit()][-1:] == [b"hold"]
    if container is not None and last_was_hold:
        container.remove_with_retries()
    if spec is not None:
        masking.finish(spec.run_dir, log_paths(spec))


@dataclass
class Rank:
    """A rank and its outcome."""

    spec: RankSpec
    state: str = "pending"
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""
    started_utc: str | None = None
    ended_utc: str | None = None
    ended_at: float = 0.0
    group_gone: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the rank as it appears in the status file."""
        return {
            "rank": self.spec.rank,
            "local_rank": self.spec.local_rank,
            "role": self.spec.role,
            "state": self.state,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "started_utc": self.started_utc,
            "ended_utc": self.ended_utc,
        }


class RankProcesses:
    """The processes of a node's ranks. Use it from only one thread, because `start` forks."""

    def __init__(self, spec: StartSpec, watchdog: Watchdog, container: RankContainer | None = None) -> None:
        self.ranks = [Rank(rank) for rank in spec.ranks]
        self._spec = spec
        self._watchdog = watchdog
        self._container = container
        self._pending_signals: dict[int, int] = {}
        self._death = proc.DeathSignal()
        self._stopping = False
        self._kill_at: float | None = None
        self._abandon_at: float | None = None

    @property
    def done(self) -> bool:
        """True if every rank that the run waits for succeeded. Always true on a node without such ranks."""
        return all(rank.state == "succeeded" for rank in self.ranks if rank.spec.decides)

    def gone(self, now: float) -> bool:
        """Return True if no rank has a process left, or the processes that remain could not be killed."""
        if self._abandon_at is not None and now >= self._abandon_at:
            return True
        return not any(rank.state == "running" for rank in self.ranks) and not self._groups()

    def first_failure(self, node_index: int, now: float) -> dict[str, Any] | None:
        """Return the failure of the rank that failed first, with its age in seconds, or None."""
        failed = [rank for rank in self.ranks if rank.state == "failed"]
        if not failed:
            return None
        rank = min(failed, key=lambda rank: rank.ended_at)
        reason = f"{rank.spec.role}: {rank.reason}" if rank.spec.role else rank.reason
        seen = failure_record(node_index, reason, rank=rank.spec.rank, exit_code=rank.exit_code)
        return {**seen, "age_s": max(0.0, now - rank.ended_at)}

    def start(self) -> None:
        """Start every rank. A rank that cannot be started counts as failed."""
        for rank in self.ranks:
            rank.started_utc = utc_now()
            try:
                self._write_names(rank.spec)
                rank.pid = _spawn(self._spec, rank.spec, self._environment(rank.spec), self._death)
            except OSError as error:
                rank.reason = f"cannot start {rank.spec.argv[0]!r}: {error.strerror}"
                self._end(rank, _CANNOT_START)
                continue
            rank.state = "running"
            self._watchdog.watch(rank.pid)

    def reap(self) -> None:
        """Record the ranks that have exited, and reap the orphans that this process has adopted."""
        by_pid = {rank.pid: rank for rank in self.ranks if rank.state == "running"}
        for pid, status in _dead_children():
            if pid in by_pid:
                self._end(by_pid[pid], _exit_code(status))

    def stop(self, signal_name: str, grace_s: float, now: float) -> None:
        """Send every rank a signal. `enforce` kills the processes that remain after the grace period."""
        self._stopping = True
        number = int(getattr(signal.Signals, signal_name))
        running = [rank for rank in self.ranks if rank.state == "running"]
        self._kill_at = now + (grace_s if running else min(grace_s, _SWEEP_GRACE_S))
        self._abandon_at = self._kill_at + _UNKILLABLE_S
        for rank in running:
            self._ask(rank, number)
        for pid in set(self._groups()) - {rank.pid for rank in running}:
            proc.signal_group(pid, signal.SIGTERM)

    def enforce(self, now: float) -> None:
        """Send pending signals, and kill the processes that remain after the grace period."""
        if self._kill_at is None:
            return
        for rank in [
            rank for rank in self.ranks if rank.spec.rank in self._pending_signals and rank.state == "running"
        ]:
            self._ask(rank, self._pending_signals.pop(rank.spec.rank))
        self._hasten(self._kill_at, now)
        if now >= self._kill_at:
            self._kill_at = now + 1.0
            if self._container is not None and self._container.exists:
                self._container.remove()
                return  # the docker clients exit on their own after they have written the ranks' last output
            for pid in self._groups():
                proc.signal_group(pid, signal.SIGKILL)

    def _hasten(self, kill_at: float, now: float) -> None:
        """Shorten the grace period once every rank has exited on its own.

        If a signal killed a rank, the whole grace period applies: the rank may have been a shell, and the program that
        the shell started may still be writing a checkpoint.
        """
        all_exited = all(rank.exit_code is not None and rank.exit_code >= 0 for rank in self.ranks)
        if all_exited and kill_at - now > _SWEEP_GRACE_S:
            self._kill_at = now + _SWEEP_GRACE_S
            for pid in self._groups():
                proc.signal_group(pid, signal.SIGTERM)

    @property
    def kill_at(self) -> float | None:
        """Time at which `enforce` kills the remaining processes; None until the ranks are stopped."""
        return self._kill_at

    def _groups(self) -> list[int]:
        """Return the process groups with members. Do not check an empty group again, because its ID may be reused."""
        for rank in self.ranks:
            rank.group_gone = rank.group_gone or (
                rank.state != "running" and (not rank.pid or not proc.is_group_alive(rank.pid))
            )
        return [rank.pid for rank in self.ranks if rank.pid and not rank.group_gone]

    def _ask(self, rank: Rank, number: int) -> None:
        """Forward a signal to a rank, or leave it to `enforce` if the rank has not started in its container yet."""
        if self._container is None or not rank.spec.inside:
            _ask(rank.pid, number)
            return
        pid = self._container.group(rank.spec.inside)
        if pid is None:
            self._pending_signals[rank.spec.rank] = number
        else:
            self._container.signal(pid if _for_rank_only(number) else -pid, number)

    def _write_names(self, rank: RankSpec) -> None:
        """Write the names of a rank's variables for `docker exec`, which takes the values from its own environment."""
        if rank.inside:
            path = os.path.join(self._spec.run_dir, f"{rank.inside}.names")
            with open(path, "w", encoding="utf-8") as stream:
                stream.writelines(f"{name}\n" for name in sorted({*rank.env, *self._spec.secrets}))

    def _environment(self, rank: RankSpec) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
        return {**inherited, **rank.env, **self._spec.secrets, proc.MARK: self._watchdog.mark}

    def _end(self, rank: Rank, exit_code: int) -> None:
        if self._container is not None and rank.spec.inside:
            rank.reason = rank.reason or why_not_started(
                self._container, rank.spec.inside, rank.spec.program, exit_code
            )
            exit_code = _signed_exit_code(exit_code)
        rank.exit_code, rank.ended_utc, rank.ended_at = exit_code, utc_now(), time.monotonic()
        rank.reason = rank.reason or _reason(exit_code)
        rank.state = "succeeded" if exit_code == 0 else "stopped" if self._stopping else "failed"


def _spawn(spec: StartSpec, rank: RankSpec, environment: dict[str, str], death: proc.DeathSignal) -> int:
    """Fork, execute the rank's program, and return the process ID."""
    log = os.open(log_path(spec.run_dir, rank.rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    error_read, error_write = os.pipe()  # closed by a successful exec
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(spec, rank, environment, log, error_write, (death, parent))
    os.close(log)
    os.close(error_write)
    error_number = os.read(error_read, 16)
    os.close(error_read)
    if error_number:
        os.waitpid(pid, 0)
        raise OSError(int(error_number), os.strerror(int(error_number)))
    return pid


def _child(
    spec: StartSpec,
    rank: RankSpec,
    environment: dict[str, str],
    log: int,
    error_pipe: int,
    parent: tuple[proc.DeathSignal, int],
) -> None:
    """Set up the child process between fork and exec. Never returns."""
    try:
        os.setsid()
        parent[0].arm(parent[1])
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(spec.workdir)
        os.execvpe(rank.argv[0], list(rank.argv), environment)
    except OSError as error:
        os.write(error_pipe, b"%d" % (error.errno or 0))
    finally:
        os._exit(_CANNOT_START)


def _for_rank_only(number: int) -> bool:
    return number in (signal.SIGUSR1, signal.SIGUSR2)


def _ask(pid: int, number: int) -> None:
    """Forward a signal to a rank's process group.

    SIGUSR1 and SIGUSR2 go only to the rank itself, because they would kill data loader workers that do not handle them.
    """
    if not _for_rank_only(number):
        proc.signal_group(pid, number)
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _dead_children() -> list[tuple[int, int]]:
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not pid:
            return dead
        dead.append((pid, status))


def _exit_code(status: int) -> int:
    """Return the exit code for a wait status, or the negated signal number if a signal killed the process."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _signed_exit_code(exit_code: int) -> int:
    """Convert 128 + n, which Docker returns if signal n killed the program, to -n. Return other codes unchanged."""
    number = exit_code - 128
    return -number if 0 < number < signal.NSIG else exit_code


def _reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}" if exit_code else ""
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"killed by {name}" + (" (possibly by the kernel because memory ran out)" if name == "SIGKILL" else "")
