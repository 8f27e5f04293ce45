"""GPU leases on this machine: one file per lease in a directory that every login user can write to.

Machines may share this directory, as they may share home directories. Every lease therefore names its machine, and a
cluster with several such hosts has a file for each of them.

The directory is sticky, so only the user who took a lease can change or remove its file, and every user can read it.
Changes require a `flock` on the directory, which the kernel releases when the process with the lock exits. A lease ends
at its expiry, so that its GPUs become free even if the user never releases it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shlex
import stat
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Iterator

from .. import proc
from ..untrusted_data import MALFORMED, AgentError, parse_json_object, require_integer, text

FOLDER = "/var/tmp/cloudgpu"  # noqa: S108 - all login users share it, and it survives a reboot
_LOCK_WAIT_S = 20.0
_SHARED = 0o1777
_MOST_GPUS = 4096
_LATEST_S = 4_102_444_799
"""The end of the year 2099, which is the latest expiry that callers accept."""


@dataclass(frozen=True)
class Lease:
    """A lease on GPUs. `user` is the owner of the lease's file, regardless of the file's content.

    `home` is the cluster's directory, recorded because a later login may have a different home directory. `machine` is
    the machine whose GPUs are leased; it is empty in leases of older versions.
    """

    token: str
    cluster: str
    owner: str
    gpus: tuple[int, ...]
    expires_epoch_s: int
    user: str = ""
    home: str = ""
    machine: str = ""

    @property
    def expired(self) -> bool:
        """True if the lease has expired."""
        return self.expires_epoch_s <= time.time()

    @property
    def description(self) -> str:
        """Description for messages: `GPUs 0-3 by ana, cluster x, until 2026-11-22 10:00 UTC`."""
        until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.expires_epoch_s))
        who = self.owner if self.owner == self.user else f"{self.owner} (user {self.user})"
        return f"{gpu_names(self.gpus)} by {who}, cluster {self.cluster}, until {until} UTC"


def gpu_names(gpus: tuple[int, ...]) -> str:
    """Format GPU indices as `GPU 3`, `GPUs 0-3` or `GPUs 0,2`."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    runs = bool(gpus) and gpus == tuple(range(gpus[0], gpus[-1] + 1))
    return f"GPUs {gpus[0]}-{gpus[-1]}" if runs else f"GPUs {','.join(map(str, gpus))}"


@contextmanager
def lease_lock() -> Iterator[None]:
    """Hold the lock on the lease directory during the block.

    Create the directory if necessary, and remove it after the block if it is empty.
    """
    handle = _locked()
    try:
        yield
        _remove_if_empty()
    finally:
        os.close(handle)


def active_leases() -> list[Lease]:
    """Return this machine's leases that have not expired, ordered by GPU. Without the lock, they may be out of date."""
    found = [_read(name) for name in _names()]
    here = ("", proc.machine_id())
    active = (lease for lease in found if lease is not None and not lease.expired and lease.machine in here)
    return sorted(active, key=lambda lease: lease.gpus)


def find_own_lease(token: str, home: str) -> Lease | None:
    """Return this user's lease for a cluster's directory on this host, even if it has expired, or None."""
    lease = _read(_name(token, home))
    return lease if lease is not None and lease.user == current_user() else None


def write_lease(lease: Lease) -> None:
    """Write a lease atomically."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=FOLDER)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({name: value for name, value in asdict(lease).items() if name != "user"}, stream)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        os.replace(temporary, os.path.join(FOLDER, _name(lease.token, lease.home)))
    except OSError as error:
        raise AgentError(
            f"cannot write a lease in {FOLDER}: {error.strerror}", hint="check that the disk is not full"
        ) from error


def remove_lease(token: str, home: str) -> None:
    """Remove this user's lease for a cluster's directory. Idempotent."""
    try:
        os.unlink(os.path.join(FOLDER, _name(token, home)))
    except FileNotFoundError:
        return


def current_user() -> str:
    """Return the name of the login user."""
    return user_name(os.getuid())


def user_name(uid: int) -> str:
    """Return the name of a user, or the user ID if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _name(token: str, home: str) -> str:
    """Return the name of a lease's file, which contains the name of the host.

    The directory of a cluster is `CLUSTER-TOKEN-HOST`, or `CLUSTER-TOKEN` if an older version created the cluster.
    """
    if not token.isalnum() or len(token) > 64:  # noqa: PLR2004 - it becomes a file name
        raise AgentError("lease: token must consist of at most 64 letters and digits")
    host = os.path.basename(os.path.normpath(home)).partition(f"-{token[:8]}-")[2] if home else ""
    return f"lease-{token}-{host}.json" if host else f"lease-{token}.json"


def _names() -> list[str]:
    try:
        return sorted(name for name in os.listdir(FOLDER) if name.startswith("lease-"))
    except FileNotFoundError:
        return []


def _read(name: str) -> Lease | None:
    """Read a lease, or return None if the file is missing or malformed. Any user can create files in the directory."""
    try:
        handle = os.open(os.path.join(FOLDER, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as stream:
            owner = user_name(os.fstat(stream.fileno()).st_uid)
            fields = parse_json_object(stream.read(65536))
        gpus = tuple(sorted({require_integer(index, _MOST_GPUS) for index in fields["gpus"]}))
        expires = require_integer(fields["expires_epoch_s"], _LATEST_S)
        return Lease(
            text(fields["token"]),
            text(fields["cluster"]),
            text(fields["owner"]),
            gpus,
            expires,
            owner,
            text(fields.get("home", "")),
            text(fields.get("machine", "")),
        )
    except (OSError, *MALFORMED):
        return None


def _locked() -> int:
    """Lock the directory, make sure that it was not replaced meanwhile, and return the handle that holds the lock."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        _create_folder()
        try:
            handle = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            handle = None  # the directory was just removed, or its creator has not set its permissions yet
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(handle, FOLDER):
                    return handle
            except BlockingIOError:
                pass
            os.close(handle)
        if time.monotonic() > deadline:
            raise AgentError(f"another process has held the lock on {FOLDER} for {_LOCK_WAIT_S:.0f} s", code="busy")
        time.sleep(0.05)


def _create_folder() -> None:
    try:
        os.mkdir(FOLDER, 0o700)
        os.chmod(FOLDER, _SHARED)
    except FileExistsError:
        about = os.lstat(FOLDER)
        if not stat.S_ISDIR(about.st_mode):
            raise AgentError(f"{FOLDER} is not a directory", hint="ask its owner to remove it") from None
        if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
            raise AgentError(
                f"any user can delete other users' leases in {FOLDER}", hint=f"run: chmod 1777 {shlex.quote(FOLDER)}"
            ) from None
    except OSError as error:
        raise AgentError(f"cannot create {FOLDER}: {error.strerror}", hint="check that the disk is not full") from error


def _same_file(handle: int, path: str) -> bool:
    try:
        by_path = os.stat(path)
    except FileNotFoundError:
        return False
    by_handle = os.fstat(handle)
    return (by_path.st_dev, by_path.st_ino) == (by_handle.st_dev, by_handle.st_ino)


def _remove_if_empty() -> None:
    """Remove the directory if it is empty and belongs to this user."""
    try:
        os.rmdir(FOLDER)
    except OSError:
        return
