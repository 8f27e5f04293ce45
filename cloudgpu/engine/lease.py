"""The lease on a cluster: a file that records the holder, so that only one process at a time changes the cluster.

A process changes the file only while it holds an `flock` on a guard file, which the kernel releases when the process
exits. If the holder's process ID has a meaning here (the same boot and the same namespace of process IDs), the holder
is alive if its process exists. Any other holder, on another machine or in another container, is alive if its heartbeat
changes. Neither the host name nor the age of a heartbeat proves anything: two machines may have the same name, and a
clock change makes every heartbeat look old. So a heartbeat is observed for a while before the lease is taken over.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from cloudgpu import bounds, files
from cloudgpu.clock import Clock
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import BusyError, StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.processes import process_start, this_system
from cloudgpu.state.documents import FORMAT, stored_format

HEARTBEAT_EVERY_S: Final = 5.0
STALE_AFTER_S: Final = 60.0
_WATCHED_S: Final = 3 * HEARTBEAT_EVERY_S
_LOOK_EVERY_S: Final = 1.0
_FORMAT: Final = 1
"""Format number of the lease file."""
_UPGRADE_HINT: Final = (
    "a newer version wrote it: upgrade cloudgpu, or delete the file if no command of that version is running"
)


@dataclass(frozen=True)
class Holder:
    """A process that holds a lease."""

    nonce: str
    owner: str
    pid: int
    process_start: str
    """Start time of the process in kernel ticks, because the kernel reuses process IDs."""
    host: str
    boot: str
    since: str
    heartbeat: Annotated[str, bounds.parse_time]
    machine: str = ""
    pid_namespace: str = ""


class ClusterLease:
    """The lease on a cluster, storage resource or matrix. Wrap all code that changes it in `with lease.hold():`."""

    def __init__(self, path: Path, clock: Clock, owner: str) -> None:
        self.path = path
        self._clock = clock
        self._owner = owner
        self._nonce = ""
        self.problem = ""
        """Error message if `hold` continued without the lease; otherwise empty."""

    @contextlib.contextmanager
    def hold(self, *, tidy: bool = False, required: bool = True) -> Iterator["ClusterLease"]:
        """Acquire the lease, send heartbeats, and release the lease on exit.

        Args:
            tidy: On exit, also remove the cluster's directory if it contains no other files.
            required: If False and the lease file cannot be written, continue without the lease and set `problem`.
                Deletions pass False, because no other process can acquire the lease in that case.
        """
        try:
            holder = self._acquire()
        except StateError as err:
            if required:
                raise
            present = self._read_if_possible()
            if present is not None and not self._dead(present) and present != self._stale_holder(present):
                raise _busy(self.path, present) from err
            self.problem = err.message
            yield self
            return
        stop = threading.Event()
        heartbeat = threading.Thread(target=self._beat, args=(holder, stop), name="lease heartbeat", daemon=True)
        heartbeat.start()
        try:
            yield self
        finally:
            stop.set()
            heartbeat.join(HEARTBEAT_EVERY_S)  # it may be blocked by a disk that does not respond
            self._release(holder, tidy=tidy)

    def holder(self) -> Holder | None:
        """Return the holder; None if there is none, its process has exited, or it no longer sends heartbeats.

        If the holder is in another system and its heartbeat is old, this call waits up to 15 seconds.
        """
        present = self._read()
        return None if present is None or self._dead(present) or present == self._stale_holder(present) else present

    def check(self) -> None:
        """Verify that this process still holds the lease."""
        present = self._read()
        if present is None or present.nonce != self._nonce:
            change = f"taken over by {present.owner}" if present else "removed"
            message = f"the lease on {self.path.parent.name} was {change}"
            raise BusyError(message, hint="check `cloudgpu status`, then run the command again")

    def _acquire(self) -> Holder:
        now = self._clock.now().isoformat()
        pid = os.getpid()
        self._nonce = secrets.token_hex(8)
        system = this_system()
        holder = Holder(
            self._nonce, self._owner, pid, process_start(pid), socket.gethostname(), system.boot, now, now,
            system.machine, system.pid_namespace,
        )  # fmt: skip
        stale = self._stale_holder(self._read())
        with self._guard():
            present = self._read()
            if present is not None and present != stale and not self._dead(present):
                raise _busy(self.path, present)
            self._write(holder)
        return holder

    def _release(self, holder: Holder, *, tidy: bool) -> None:
        if not self.path.exists():
            return  # `down` removes the whole directory as its last step
        # If the file cannot be removed, the next process detects that the recorded holder has exited.
        with contextlib.suppress(OSError, StateError), self._guard():
            present = self._read()
            if present is not None and present.nonce == holder.nonce:
                self.path.unlink(missing_ok=True)
            if tidy:
                self._tidy()

    def _tidy(self) -> None:
        """Remove the cluster's directory if it contains only the guard file. The caller holds the guard's lock."""
        guard = self._guard_path
        self._fresh_path.unlink(missing_ok=True)
        if {path.name for path in guard.parent.iterdir()} == {guard.name}:
            guard.unlink()
            # this fails if another process is creating a cluster with the same name in the directory
            with contextlib.suppress(OSError):
                guard.parent.rmdir()

    def _beat(self, holder: Holder, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_EVERY_S):
            fresh = Holder(**{**asdict(holder), "heartbeat": self._clock.now().isoformat()})
            if not self.path.exists():
                return
            # a disk error must not stop the command: on this machine, the running process proves that the lease is held
            with contextlib.suppress(OSError, StateError), self._guard():
                present = self._read()
                if present is None or present.nonce != holder.nonce:
                    return
                self._replace(fresh)

    def _dead(self, holder: Holder) -> bool:
        """Return True if the holder has exited. Return False if its process ID has no meaning here."""
        return _is_here(holder) and process_start(holder.pid) != holder.process_start

    def _stale_holder(self, holder: Holder | None) -> Holder | None:
        """Return the holder if it is in another system and sends no heartbeats.

        An old or future heartbeat alone proves nothing, because either machine's clock may have been changed. The
        holder is stale only if its heartbeat does not change within a time in which a running holder would send
        several. A recent heartbeat of this machine before a reboot is observed, too. Do not call this method inside
        `_guard`, because it may sleep for 15 seconds.
        """
        if holder is None or _is_here(holder):
            return None
        age = self._clock.now() - bounds.parse_time(holder.heartbeat)
        if abs(age) <= timedelta(seconds=STALE_AFTER_S) and not _may_have_rebooted(holder):
            return None
        until = self._clock.monotonic() + _WATCHED_S
        while self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_EVERY_S)
            if self._read_if_possible() != holder:
                return None
        return holder

    def _read(self) -> Holder | None:
        """Return the recorded holder, or None if the file is missing or malformed.

        The file is never partially written, because writers rename a complete file into place.
        """
        try:
            return self._load()
        except OSError as err:
            raise unwritable_error(self.path, err) from err

    def _read_if_possible(self) -> Holder | None:
        """Return the recorded holder, or None if the file is missing, malformed or unreadable."""
        try:
            return self._load()
        except OSError:
            return None

    def _load(self) -> Holder | None:
        try:
            content = files.read_json(self.path, files.SETTINGS_BYTES)
            # Without this check, a newer format would look malformed, and the lease would be taken from its holder.
            stored_format(self.path, "lease", content, _FORMAT, hint=_UPGRADE_HINT)
            return decode_as(Holder, content)
        except FileNotFoundError:
            return None
        except (*MALFORMED, files.FileRefusedError):
            return None

    def _write(self, holder: Holder) -> None:
        try:
            self._replace(holder)
        except OSError as err:
            raise unwritable_error(self.path, err) from err

    def _replace(self, holder: Holder) -> None:
        fresh = self._fresh_path
        try:
            files.create(fresh, json.dumps({FORMAT: _FORMAT, **asdict(holder)}).encode(), durable=False)
            fresh.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise

    @property
    def _fresh_path(self) -> Path:
        """Path of the temporary file. All writers share it, because the guard's lock admits one writer at a time."""
        return self.path.with_name(f"{self.path.name}.fresh")

    @property
    def _guard_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.guard")

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        descriptor = self._locked()
        try:
            yield
        finally:
            os.close(descriptor)

    def _locked(self) -> int:
        """Lock the guard file and return its descriptor; retry if another process has removed the file."""
        guard = self._guard_path
        while True:
            try:
                files.make_private_directory(guard.parent)
                descriptor = files.open_descriptor(guard, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # another process removed the directory in the meantime
            except OSError as err:
                raise unwritable_error(guard, err) from err
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), guard.stat()):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _busy(path: Path, holder: Holder) -> BusyError:
    named_alike = holder.host == socket.gethostname() and not _is_here(holder)
    where = f"another machine or container named {holder.host}" if named_alike else holder.host
    who = f"{holder.owner} (process {holder.pid} on {where})"
    message = f"{who} has been working on {path.parent.name} since {holder.since}"
    return BusyError(message, hint="wait for that process to finish, or stop it")


def _is_here(holder: Holder) -> bool:
    """Return True if the holder's process ID has a meaning for this process."""
    system = this_system()
    here = (socket.gethostname(), system.boot, system.pid_namespace)
    return (holder.host, holder.boot, holder.pid_namespace) == here


def _may_have_rebooted(holder: Holder) -> bool:
    """Return True if the holder may have been on this machine before a reboot, or in an older version of cloudgpu."""
    system = this_system()
    if not holder.machine:
        return holder.host == socket.gethostname()
    return holder.machine == system.machine and holder.boot != system.boot
