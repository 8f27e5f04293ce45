"""Partially downloaded files: write data to disk, track the completed chunks, and verify the content."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from typing import Any

from ..errors import AgentError
from .http import TransientError
from .request import RequestedFile

_CHUNK = 1 << 20
STEP = 16 << 20
"""Size of the chunks in which a large file is requested, in bytes."""


def open_part(path: str) -> int:
    """Open or create a partial file and lock it, so that two downloads of the same file take turns."""
    while True:
        part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(part, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(part), os.stat(path)):
                return part
        except FileNotFoundError:
            pass  # renamed to its final name while we waited
        os.close(part)


def write_at(part: int, data: memoryview, offset: int) -> None:
    """Write all of the data at an offset."""
    while data:
        count = os.pwrite(part, data, offset)
        data, offset = data[count:], offset + count


def digest_part(part: int, size: int, digest: Any) -> int:  # noqa: ANN401 - hashlib names no type
    """Add the part's data to the digest and return the number of bytes. A part larger than `size` is emptied first."""
    if os.fstat(part).st_size > size:
        os.ftruncate(part, 0)
    have = 0
    while True:
        data = os.pread(part, _CHUNK, have)
        if not data:
            return have
        digest.update(data)
        have += len(data)


def digest_range(part: int, first: int, end: int, digest: Any) -> None:  # noqa: ANN401
    """Add the bytes from `first` up to, but not including, `end` to the digest."""
    while first < end:
        data = os.pread(part, min(_CHUNK, end - first), first)
        if not data:
            return
        digest.update(data)
        first += len(data)


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for data in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(data)
    return digest.hexdigest()


def verify(part: int, file: RequestedFile, have: int, digest: str, *, resumed: bool) -> None:
    """Check a part's size and checksum. Empty the part if it is too long or has the wrong checksum."""
    if have < file.size:
        raise TransientError(f"only {have} of {file.size} bytes arrived")
    fault = ""
    if have > file.size:
        fault = f"received more than the expected {file.size} bytes"
    elif file.sha256 is not None and digest != file.sha256:
        fault = f"wrong checksum: sha256 {digest}, expected {file.sha256}"
    if fault:
        os.ftruncate(part, 0)
        if resumed:
            raise TransientError(fault)  # the beginning may be from an older version, so download the whole file again
        hint = "check the file at the source: it may have changed or be damaged"
        raise AgentError(f"{file.path}: {fault}", hint=hint, code="checksum")


def apply_attributes(part: int, file: RequestedFile) -> None:
    """Set the requested permissions and modification time, if any."""
    if file.mode is not None:
        os.fchmod(part, file.mode & 0o777)
    if file.mtime_ns is not None:
        os.utime(part, ns=(file.mtime_ns, file.mtime_ns))


class PartMap:
    """Map of a large file's completed chunks, stored next to the part: a header and one byte per chunk."""

    def __init__(self, file: RequestedFile) -> None:
        """Read the map, or start a new map if the stored one describes different content."""
        self.path = file.path + ".part.map"
        self.steps = -(-file.size // STEP)
        header = json.dumps([file.size, file.mark, STEP]).encode() + b"\n"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._offset = len(header)
        text = os.pread(self._file, len(header) + self.steps, 0)
        # If the content has no identifier, chunks from an earlier call may belong to a different version.
        if not file.mark or text[: len(header)] != header or len(text) != len(header) + self.steps:
            os.ftruncate(self._file, 0)
            text = header + bytes(self.steps)
            os.pwrite(self._file, text, 0)
        self.done = [bool(byte) for byte in text[len(header) :]]

    def mark(self, step: int) -> None:
        """Mark a chunk as complete."""
        self.done[step] = True
        os.pwrite(self._file, b"\x01", self._offset + step)

    def close(self, *, drop: bool) -> None:
        """Close the map. If `drop` is True, delete it."""
        os.close(self._file)
        if drop:
            os.unlink(self.path)


def disk_error(path: str, error: OSError) -> AgentError:
    """Return the error for a failed disk operation."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
        return AgentError(f"{path}: the disk is full", hint=hint, code="disk-full")
    return AgentError(f"{path}: {error.strerror or type(error).__name__}", code="io")
