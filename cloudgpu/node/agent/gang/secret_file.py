"""A run's secrets on tmpfs while it runs, so that other agent processes can mask them in the ranks' output.

The file is never on a disk. When the run ends, the secrets in the logs are overwritten, and the file is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from typing import Iterable

from ..masking import Mask
from ..untrusted_data import MALFORMED, AgentError

FOLDER = "/dev/shm"  # noqa: S108 - the only tmpfs that every Linux system has and every user may write to
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_PIECE_BYTES = 4 << 20
_MOST_BYTES = 16 << 20


def path_of(run_dir: str) -> str:
    """Return the path of the secrets of the run in this directory."""
    digest = hashlib.sha256(os.path.realpath(run_dir).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return os.path.join(FOLDER, f"cloudgpu-{os.geteuid()}-{digest}")


def write(run_dir: str, secrets: dict[str, str]) -> None:
    """Write the secrets of a run that starts. Without secrets, nothing is written."""
    if not secrets:
        return
    if not _is_in_memory(FOLDER):
        raise AgentError(
            f"{FOLDER} is not on tmpfs, so the secrets would be written to a disk", hint=f"mount tmpfs at {FOLDER}"
        )
    path = path_of(run_dir)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        # Every user can write to the folder: O_EXCL rejects a file or link that somebody else put there.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(secrets).encode())
    except OSError as error:
        raise AgentError(
            f"cannot write {path}: {error.strerror}", hint=f"free space in {FOLDER} on the node"
        ) from error


def read_mask(run_dir: str) -> Mask:
    """Return the mask for the output of a run. It masks nothing if the run has no secrets or has ended."""
    try:
        handle = os.open(path_of(run_dir), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return Mask(())
    with os.fdopen(handle, "rb") as stream:
        info = os.fstat(handle)
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            return Mask(())
        try:
            return Mask([str(value) for value in json.loads(stream.read(_MOST_BYTES)).values()])
        except MALFORMED:
            return Mask(())


def finish(run_dir: str, logs: Iterable[str]) -> None:
    """Overwrite the secrets in the logs of a run that has ended, then remove its file.

    If a log cannot be written, the file stays, so that the log is still masked when it is read.
    """
    mask = read_mask(run_dir)
    try:
        if mask.reach:
            for log in logs:
                _overwrite(log, mask)
    except OSError:
        return
    remove(run_dir)


def remove(run_dir: str) -> None:
    """Remove the secrets of a run. It is not an error if there are none."""
    with suppress(OSError):
        os.unlink(path_of(run_dir))


def masked_at(handle: int, offset: int, data: bytes, mask: Mask) -> bytes:
    """Return masked data that was read from an open log at this offset."""
    if not mask.reach:
        return data
    first = max(0, offset - mask.reach)
    before = os.pread(handle, offset - first, first)
    return mask.between(before, data, os.pread(handle, mask.reach, offset + len(data)))


def _overwrite(log: str, mask: Mask) -> None:
    try:
        handle = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while True:
            # A secret that begins in this piece may end in the next.
            data = os.pread(handle, _PIECE_BYTES + mask.reach, offset)
            if not data:
                return
            masked = mask(data)
            if masked != data:
                os.pwrite(handle, masked, offset)
            offset += _PIECE_BYTES
    finally:
        os.close(handle)


def _is_in_memory(folder: str) -> bool:
    """Return True if the file system of a directory keeps its files in memory."""
    folder = os.path.realpath(folder)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
            mounts = [line.split(" ") for line in stream if line.count(" ") > 1]
    except OSError:
        return False
    above = [(mount[1], mount[2]) for mount in mounts if f"{folder}/".startswith(f"{mount[1].rstrip('/')}/")]
    # The last of several mounts at the same place is the visible one.
    kinds = {place: kind for place, kind in above}
    return bool(kinds) and kinds[max(kinds, key=len)] in _IN_MEMORY
