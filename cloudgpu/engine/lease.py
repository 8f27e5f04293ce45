"""The lease on a cluster: a file with its holder, so that only one process at a time changes the cluster.

The file is only changed under a short `flock`, which the kernel releases when the process exits. A holder is alive if
its process exists (same machine, same boot) or its heartbeat changes (another machine). A stale heartbeat is watched
for a while, because setting a clock makes every heartbeat look stale.
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
from cloudgpu.decoding import MALFORMED, decoded
from cloudgpu.engine.processes import process_start
from cloudgpu.errors import BusyError, StateError
from cloudgpu.paths import unwritable

HEARTBEAT_EVERY_S: Final = 5.0
STALE_AFTER_S: Final = 60.0
_WATCHED_S: Final = 3 * HEARTBEAT_EVERY_S
_LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Holder:
    """The holder of a lease."""

    nonce: str
    owner: str
    pid: int
    process_start: str
    """Start time of the process in kernel ticks: a process id alone may be somebody else's by now."""
    host: str
    boot: str
    since: str
    heartbeat: Annotated[str, bounds.moment]


class ClusterLease:
    """The lease on one cluster. `with lease.hold():` around everything that changes it."""

    def __init__(self, path: Path, clock: Clock, owner: str) -> None:
        self.path = path
        self._clock = clock
        self._owner = owner
        self._nonce = ""
        self.problem = ""
        """Why the lease is not held although `hold` was entered; empty if it is held."""

    @contextlib.contextmanager
    def hold(self, *, tidy: bool = False, required: bool = True) -> Iterator["ClusterLease"]:
        """Acquire the lease, send heartbeats and release it. With `tidy`, also remove an otherwise empty folder.

        Deletion does not require the lease: if the file cannot be written, no other process can acquire it either, and
        `problem` says why.

        Raises:
            BusyError: Another process holds the lease; the message says who, where and since when.
            StateError: The lease file cannot be written, and the lease is required.
        """
        try:
            holder = self._take()
        except StateError as err:
            if required:
                raise
            present = self._readable()
            if present is not None and not self._dead(present):
                raise _busy(self.path, present) from err
            self.problem = err.message
            yield self
            return
        ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(holder, ended), name="lease heartbeat", daemon=True)
        beat.start()
        try:
            yield self
        finally:
            ended.set()
            beat.join()
            self._give_back(holder, tidy=tidy)

    def holder(self) -> Holder | None:
        """Return the holder; None if there is none or its process is dead."""
        present = self._read()
        return None if present is None or self._dead(present) or present == self._silent() else present

    def check(self) -> None:
        """Verify that this process still holds the lease.

        Raises:
            BusyError: It was taken over, because this process was silent for too long.
        """
        present = self._read()
        if present is None or present.nonce != self._nonce:
            message = f"the lease {self.path.name} was taken over by {present.owner if present else 'nobody'}"
            raise BusyError(message, hint="see `cloudgpu status`, then run the command again")

    def _take(self) -> Holder:
        now = self._clock.now().isoformat()
        pid = os.getpid()
        self._nonce = secrets.token_hex(8)
        start, host, boot = process_start(pid), socket.gethostname(), _boot_id()
        holder = Holder(self._nonce, self._owner, pid, start, host, boot, now, now)
        silent = self._silent()
        with self._guard():
            present = self._read()
            if present is not None and present != silent and not self._dead(present):
                raise _busy(self.path, present)
            self._write(holder)
        return holder

    def _give_back(self, holder: Holder, *, tidy: bool) -> None:
        if not self.path.exists():
            return  # the whole folder may be gone by now: `down` ends with that
        # A file that cannot be removed names a process that is about to end: whoever comes next sees that it is dead.
        with contextlib.suppress(OSError, StateError), self._guard():
            present = self._read()
            if present is not None and present.nonce == holder.nonce:
                self.path.unlink(missing_ok=True)
            if tidy:
                self._tidy()

    def _tidy(self) -> None:
        """Remove the folder of a cluster of which nothing but the guard is left. The guard's lock is held."""
        guard = self._guard_path
        self._fresh_path.unlink(missing_ok=True)
        if {path.name for path in guard.parent.iterdir()} == {guard.name}:
            guard.unlink()
            # somebody may just be making a cluster of this name again: then the folder is theirs
            with contextlib.suppress(OSError):
                guard.parent.rmdir()

    def _beat(self, holder: Holder, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT_EVERY_S):
            fresh = Holder(**{**asdict(holder), "heartbeat": self._clock.now().isoformat()})
            if not self.path.exists():
                return
            # a disk that fails must not end the work: on this machine the living process is proof enough
            with contextlib.suppress(OSError, StateError), self._guard():
                present = self._read()
                if present is None or present.nonce != holder.nonce:
                    return
                self._replace(fresh)

    def _dead(self, holder: Holder) -> bool:
        """Return True if the holder ran on this machine and has exited. False if it ran on another machine."""
        if holder.host != socket.gethostname():
            return False
        return holder.boot != _boot_id() or process_start(holder.pid) != holder.process_start

    def _silent(self) -> Holder | None:
        """Return the holder on another machine if it sends no heartbeats. The guard is not held meanwhile.

        Its clock or this one may have been set, so an old or future heartbeat proves nothing. Only one that does not
        change while a living holder would have written several does.
        """
        holder = self._read()
        if holder is None or holder.host == socket.gethostname():
            return None
        age = self._clock.now() - bounds.moment(holder.heartbeat)
        if abs(age) <= timedelta(seconds=STALE_AFTER_S):
            return None
        until = self._clock.monotonic() + _WATCHED_S
        while self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_EVERY_S)
            if self._read() != holder:
                return None
        return holder

    def _read(self) -> Holder | None:
        """Return the recorded holder, or None if the file is malformed. It is renamed into place, so never partial."""
        try:
            holder = decoded(Holder, files.read_json(self.path, files.SETTINGS_BYTES))
        except FileNotFoundError:
            return None
        except (*MALFORMED, files.FileRefusedError):
            return None
        except OSError as err:
            raise unwritable(self.path, err) from err
        return holder

    def _readable(self) -> Holder | None:
        """Return the recorded holder; None also if the file cannot be read."""
        try:
            return self._read()
        except StateError:
            return None

    def _write(self, holder: Holder) -> None:
        try:
            self._replace(holder)
        except OSError as err:
            raise unwritable(self.path, err) from err

    def _replace(self, holder: Holder) -> None:
        fresh = self._fresh_path
        try:
            files.create(fresh, json.dumps(asdict(holder)).encode(), durable=False)
            fresh.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise

    @property
    def _fresh_path(self) -> Path:
        """The temporary file, the same for all writers, because the guard admits one at a time."""
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
        """Return the locked guard file, after checking that it was not removed while waiting for the lock."""
        guard = self._guard_path
        while True:
            try:
                guard.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = files.open_descriptor(guard, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # the folder was removed in between
            except OSError as err:
                raise unwritable(guard, err) from err
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
    who = f"{holder.owner} (process {holder.pid} on {holder.host})"
    message = f"{who} has been working on {path.parent.name} since {holder.since}"
    return BusyError(message, hint="wait for it to finish, or stop that process")


def _boot_id() -> str:
    """Return an ID that changes at every boot; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
