"""Partially downloaded files: fetch their ranges in parallel, track completed chunks and progress, verify content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Protocol, Sequence

from ..untrusted_data import AgentError
from .http import HttpConnections, RequestedFile, TransientError, WrongRangeError

_EVERY_S = 0.5
"""Minimum time between two reports, in seconds."""
_CHUNK = 1 << 20
STEP = 16 << 20
"""Size of the chunks in which a large file is requested, in bytes."""
LARGE = 2 * STEP
"""Minimum size, in bytes, of a file that is downloaded in ranges."""


class Progress:
    """The bytes that are present on this node, in total and for each file or part of a file. Threads may share it."""

    def __init__(self, report: Callable[[int], None]) -> None:
        """Call `report` with the total, at most every `_EVERY_S` seconds."""
        self._report = report
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._reported_at = time.monotonic()
        self._lock = threading.Lock()

    def at(self, part: str, size: int) -> None:
        """Record that `size` bytes of this part are present, which are fewer than before if bytes were discarded."""
        with self._lock:
            self._total += size - self._sizes.get(part, 0)
            self._sizes[part] = size
            now = time.monotonic()
            if now - self._reported_at < _EVERY_S:
                return
            self._reported_at = now
            with contextlib.suppress(OSError):  # the caller has disconnected, which the verb's last message reports
                self._report(self._total)


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


class RangeDownloads(Protocol):
    """The subset of the `download.Downloads` interface that ranged downloads use."""

    web: HttpConnections
    progress: Progress

    def attempts(self, wanted: RequestedFile, once: Callable[[], None]) -> bool:
        """Retry until `once` succeeds. Return False if another download has failed."""

    def count(self, size: int) -> None:
        """Add to the number of bytes downloaded."""


class RangesUnsupportedError(Exception):
    """The server sends whole files only."""


def download_ranges(downloads: RangeDownloads, part: int, wanted: RequestedFile, pool: ThreadPoolExecutor) -> None:
    """Download the missing ranges and verify the file. If another download fails meanwhile, skip the verification."""
    part_map = PartMap(wanted)
    try:
        os.ftruncate(part, wanted.size)
        resumed = any(part_map.done)
        for number, done in enumerate(part_map.done):
            downloads.progress.at(f"{wanted.path} {number}", min(STEP, wanted.size - number * STEP) if done else 0)
        steps = [
            None if done else pool.submit(_step, downloads, part, wanted, part_map, number)
            for number, done in enumerate(part_map.done)
        ]
        try:
            digest = _digest(part, wanted, steps)
        finally:
            _settle(steps)
        if all(part_map.done):
            verify(part, wanted, wanted.size, digest, resumed=resumed)
    finally:
        part_map.close(drop=all(part_map.done))


def _digest(part: int, wanted: RequestedFile, steps: Sequence[Future[None] | None]) -> str:
    digest = hashlib.sha256()
    for number, step in enumerate(steps):
        if step is not None:
            step.result()
        if wanted.sha256 is not None:
            digest_range(part, number * STEP, min((number + 1) * STEP, wanted.size), digest)
    return digest.hexdigest()


def _settle(steps: Sequence[Future[None] | None]) -> None:
    """Cancel the steps that have not started, and wait until no thread writes to the part file."""
    for step in steps:
        if step is not None and not step.cancel():
            step.exception()


def _step(downloads: RangeDownloads, part: int, wanted: RequestedFile, part_map: PartMap, number: int) -> None:
    """Download one range. After a lost connection, resume where the download stopped."""
    first, end = number * STEP, min((number + 1) * STEP, wanted.size)
    have = first

    def fetch_rest() -> None:
        nonlocal have
        try:
            answer = downloads.web.get(wanted, have, end - 1)
        except WrongRangeError:
            raise RangesUnsupportedError from None
        if answer.status != http.client.PARTIAL_CONTENT:
            downloads.web.drop()
            raise RangesUnsupportedError
        for data in downloads.web.body(answer):
            chunk = data[: end - have]
            write_at(part, chunk, have)
            have += len(chunk)
            downloads.count(len(chunk))
            downloads.progress.at(f"{wanted.path} {number}", have - first)
            if len(chunk) < len(data):
                downloads.web.drop()  # the remaining data belongs to another step or exceeds the file
                break
        if have < end:
            downloads.web.drop()
            raise TransientError(f"only {have - first} of {end - first} bytes arrived")

    if downloads.attempts(wanted, fetch_rest):
        part_map.mark(number)
