"""A partially downloaded file: the data on disk, how much of it is complete, and its verification."""

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
"""Bytes of a large file that one request asks for."""


def open_part(path: str) -> int:
    """Open the partial file and lock it; two fetches of one file take turns."""
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
    """Add the existing data to the digest and return its size. Data beyond the expected size is truncated."""
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
    """Take a range that is there into the digest."""
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


def verify(part: int, wanted: RequestedFile, have: int, digest: str, *, resumed: bool) -> None:
    """Keep a part that is short; empty one that is wrong, or no later attempt could succeed.

    Raises:
        Passing: It is short, or its beginning may be of an older file.
        AgentError: It is wrong.
    """
    if have < wanted.size:
        raise TransientError(f"only {have} of {wanted.size} bytes arrived")
    wrong = ""
    if have > wanted.size:
        wrong = f"more bytes came than the {wanted.size} that were expected"
    elif wanted.sha256 is not None and digest != wanted.sha256:
        wrong = f"wrong checksum: sha256 {digest}, expected {wanted.sha256}"
    if wrong:
        os.ftruncate(part, 0)
        if resumed:
            raise TransientError(wrong)  # the beginning may be of an older file: once more from there
        hint = "the file at the source has changed or is damaged"
        raise AgentError(f"{wanted.path}: {wrong}", hint=hint, code="checksum")


def apply_attributes(part: int, wanted: RequestedFile) -> None:
    """Set the requested permissions and modification time, if any."""
    if wanted.mode is not None:
        os.fchmod(part, wanted.mode & 0o777)
    if wanted.mtime_ns is not None:
        os.utime(part, ns=(wanted.mtime_ns, wanted.mtime_ns))


class PartMap:
    """Completed chunks of a large file: a file beside the part with a header and one byte per chunk."""

    def __init__(self, wanted: RequestedFile) -> None:
        """Read the map, or start a new one if it belongs to other content.

        Raises:
            OSError: The disk is full or not writable.
        """
        self.path = wanted.path + ".part.map"
        self.steps = -(-wanted.size // STEP)
        head = json.dumps([wanted.size, wanted.mark, STEP]).encode() + b"\n"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._offset = len(head)
        text = os.pread(self._file, len(head) + self.steps, 0)
        # Without anything that vouches for the content, what an earlier call brought may be of another one.
        if not wanted.mark or text[: len(head)] != head or len(text) != len(head) + self.steps:
            os.ftruncate(self._file, 0)
            text = head + bytes(self.steps)
            os.pwrite(self._file, text, 0)
        self.done = [bool(byte) for byte in text[len(head) :]]

    def mark(self, step: int) -> None:
        """Mark a chunk as complete."""
        self.done[step] = True
        os.pwrite(self._file, b"\x01", self._offset + step)

    def close(self, *, drop: bool) -> None:
        """Close the map. With `drop`, delete it."""
        os.close(self._file)
        if drop:
            os.unlink(self.path)


def disk_error(path: str, error: OSError) -> AgentError:
    """Return the error for a failed disk operation."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
        return AgentError(f"{path}: the disk is full", hint=hint, code="disk-full")
    return AgentError(f"{path}: {error.strerror or type(error).__name__}", code="io")
