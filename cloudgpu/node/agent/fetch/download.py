"""`fetch` downloads files in parallel, resumes interrupted downloads and verifies checksums; `forget` forgets files.

A large file is fetched in ranges over several connections and hashed in order while later ranges are still arriving.
URLs are never shown, because they may be presigned.

`~/.cloudgpu/data/` contains one record per dataset and target directory. A file that still has the recorded size and
mtime is neither downloaded nor read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Callable, Sequence

from .. import files
from ..files import agent_folder
from ..heartbeat import advance
from ..untrusted_data import MALFORMED, AgentError, require_integer, require_object, text
from . import partial_files as fetch_part
from .http import (
    HttpConnections,
    Peer,
    RequestedFile,
    TransientError,
    WrongRangeError,
    parse_peer,
    parse_requested_files,
)
from .partial_files import LARGE, Progress, RangesUnsupportedError, download_ranges

_GIB = float(1 << 30)
_THREADS = 16
_ATTEMPTS = 6
_BACK_OFF_S = 0.4
_LONGEST_WAIT_S = 20.0


class Record:
    """The record of a dataset's files in a target directory. A dataset without a source has no saved record."""

    def __init__(self, spec: dict[str, Any]) -> None:
        cache = spec.get("cache") or {}
        self._about = {key: str(cache.get(key) or "") for key in ("name", "source", "to")}
        self._files: dict[str, list[Any]] = {}
        if self._about["source"]:
            with contextlib.suppress(*MALFORMED):
                stored = require_object((files.read_json(self._path) or {}).get("files") or {})
                self._files = {path: _parsed_row(row) for path, row in stored.items()}

    @property
    def _path(self) -> str:
        key = f"{self._about['source']}\0{self._about['to']}".encode()
        return os.path.join(agent_folder("data"), f"{hashlib.sha256(key).hexdigest()[:24]}.json")

    def is_verified(self, file: RequestedFile, stat: os.stat_result) -> bool:
        """Return True if the file was verified and has not changed since."""
        return bool(file.mark) and self._files.get(file.path) == [stat.st_size, stat.st_mtime_ns, file.mark]

    def mark_of(self, path: str, stat: os.stat_result) -> str | None:
        """Return the identifier of a file's verified content, or None if the file is unverified or has changed since.

        For a dataset without a source, nothing is recorded, so size and mtime identify the content.
        """
        if not self._about["source"]:
            return f"etag {stat.st_size}-{stat.st_mtime_ns}"
        size, mtime_ns, mark = self._files.get(path) or (None, None, "")
        return str(mark) if (size, mtime_ns) == (stat.st_size, stat.st_mtime_ns) else None

    def note(self, file: RequestedFile) -> None:
        """Record the file's current size, mtime and identifier as verified. Ignore a missing file."""
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(file.path)
            self._files[file.path] = [stat.st_size, stat.st_mtime_ns, file.mark]

    def save(self) -> None:
        """Save the record. Disk errors are ignored, because the next download verifies the files again."""
        if self._about["source"] and self._files:
            with contextlib.suppress(OSError):
                os.makedirs(agent_folder("data"), mode=0o700, exist_ok=True)
                files.write_json(self._path, {**self._about, "files": self._files})


def _parsed_row(row: Any) -> list[Any]:  # noqa: ANN401 - JSON
    size, mtime_ns, mark = row
    return [require_integer(size), mtime_ns, text(mark)]


def forget_files(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """`forget`: delete the downloaded files of a dataset from this node."""
    record = Record(spec)
    removed, freed = _removed(record._files)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(record._path)
    emit({"removed": removed, "bytes": freed})


def forget_all(folder: str) -> None:
    """Delete every dataset file that the records in `folder` list. Used when a cluster releases this host."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with contextlib.suppress(ValueError):
            _removed((files.read_json(os.path.join(folder, name)) or {}).get("files") or {})


def _removed(listed: dict[str, list[Any]]) -> tuple[int, int]:
    """Delete the listed files and the directories that become empty.

    Return the number of listed files, including files that no longer existed, and the number of bytes freed.
    """
    freed, folders = 0, set()
    for path, (size, *_) in listed.items():
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AgentError(f"cannot delete {path}: {error.strerror}", code="io") from None
        freed += int(size)
        advance()
        folders.add(os.path.dirname(path))
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.removedirs(folder)
    return len(listed), freed


def fetch_files(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Download the requested files. Print how many were fetched, the bytes received, and how many were already present.

    Meanwhile, print `{"done": BYTES}`: the size of what is present, including bytes from an interrupted download.
    """
    requested, record = parse_requested_files(spec), Record(spec)
    progress = Progress(lambda done: emit({"done": done}))
    downloads = Downloads(int(spec.get("attempts") or _ATTEMPTS), record, progress, parse_peer(spec))
    with closing(downloads.web), ThreadPoolExecutor(_THREADS) as pool:
        present_flags = list(pool.map(downloads.has_requested_content, requested))
        missing = [file for file, is_present in zip(requested, present_flags) if not is_present]
        progress.at("", sum(file.size for file, is_present in zip(requested, present_flags) if is_present))
        check_disk_space(missing)
        try:
            small = [pool.submit(downloads.fetch, file) for file in missing if file.size < LARGE]
            fetched = sum(downloads.fetch_large(file, pool) for file in missing if file.size >= LARGE)
            fetched += sum(download.result() for download in small)
        finally:
            record.save()
    if downloads.failure is not None:
        if spec.get("hand") and not downloads.failure.hint:
            downloads.failure.hint = (
                "check that the nodes can reach each other at their private addresses, or set share: each"
            )
        raise downloads.failure
    emit({"fetched": fetched, "bytes": downloads.bytes, "reused": len(requested) - fetched})


class Downloads:
    """A set of downloads that run in several threads. The first failure stops all of them."""

    def __init__(self, attempts: int, record: Record, progress: Progress, peer: Peer | None = None) -> None:
        self.bytes = 0
        self.progress = progress
        self.failure: AgentError | None = None
        self._record = record
        self._max_attempts = attempts
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.web = HttpConnections(peer)

    def has_requested_content(self, wanted: RequestedFile) -> bool:
        """Return True if the file exists with the requested content, and record it as verified.

        A file for which the request has no checksum, ETag or modification time needs only the requested size. A disk
        error stops all downloads.
        """
        try:
            is_right = self._found(wanted)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._fail(fetch_part.disk_error(wanted.path, error))
            return False
        if is_right:
            with self._lock:
                self._record.note(wanted)
        return is_right

    def _found(self, wanted: RequestedFile) -> bool:
        stat = os.stat(wanted.path)
        if stat.st_size != wanted.size:
            return False
        if wanted.mtime_ns is not None:
            return stat.st_mtime_ns == wanted.mtime_ns
        if self._record.is_verified(wanted, stat):
            return True
        if wanted.sha256 is None:
            return not wanted.etag
        return fetch_part.file_digest(wanted.path) == wanted.sha256

    def fetch(self, wanted: RequestedFile) -> bool:
        """Download a file. Return False if it was already present, failed, or was stopped by another failure."""
        return self._guarded(wanted, lambda part: self.attempts(wanted, lambda: self._download(part, wanted)))

    def fetch_large(self, wanted: RequestedFile, pool: ThreadPoolExecutor) -> bool:
        """Download a file in ranges, or as a whole if the server does not support ranges. See `fetch`."""

        def bring(part: int) -> bool:
            try:
                return self.attempts(wanted, lambda: download_ranges(self, part, wanted, pool))
            except RangesUnsupportedError:
                os.ftruncate(part, 0)
                return self.attempts(wanted, lambda: self._download(part, wanted))

        return self._guarded(wanted, bring)

    def _guarded(self, wanted: RequestedFile, bring: Callable[[int], bool]) -> bool:
        if self._stopped.is_set():
            return False
        try:
            return self._bring(wanted, bring)
        except AgentError as error:
            self._fail(error)
        except OSError as error:
            self._fail(fetch_part.disk_error(wanted.path, error))
        return False

    def _fail(self, error: AgentError) -> None:
        with self._lock:
            self.failure = self.failure or error
        self._stopped.set()

    def _bring(self, wanted: RequestedFile, bring: Callable[[int], bool]) -> bool:
        os.makedirs(os.path.dirname(wanted.path), exist_ok=True)
        temporary = wanted.path + ".part"
        part = fetch_part.open_part(temporary)
        try:
            if os.path.exists(wanted.path) and self.has_requested_content(wanted):
                os.unlink(temporary)
                return False  # another process downloaded it while we waited for the lock
            if wanted.sha256 is None and wanted.size < LARGE:
                os.ftruncate(part, 0)  # the partial file may contain an earlier version
            if not bring(part):
                return False
            fetch_part.apply_attributes(part, wanted)
            os.replace(temporary, wanted.path)
        finally:
            os.close(part)
        with self._lock:
            self._record.note(wanted)
        return True

    def attempts(self, wanted: RequestedFile, once: Callable[[], None]) -> bool:
        """Retry until `once` succeeds. Return False if another download has failed."""
        for attempt in range(1, self._max_attempts + 1):
            if self._stopped.is_set():
                return False
            try:
                once()
            except TransientError as error:
                if attempt == self._max_attempts:
                    attempts = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                    raise AgentError(f"{wanted.path}: {error} ({attempts})", code="network") from None
                wait_s = min(_LONGEST_WAIT_S, _BACK_OFF_S * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311 - jitter
                self._stopped.wait(wait_s)
            else:
                return not self._stopped.is_set()
        return False

    def _download(self, part: int, wanted: RequestedFile) -> None:
        """Download the missing part of the file, then verify the whole file."""
        digest = hashlib.sha256()
        resumed = have = fetch_part.digest_part(part, wanted.size, digest)
        if have < wanted.size or not wanted.size:
            try:
                answer = self.web.get(wanted, have, None)
            except WrongRangeError:
                os.ftruncate(part, 0)  # the next attempt requests the whole file
                raise
            if have and answer.status != http.client.PARTIAL_CONTENT:
                have, digest = 0, hashlib.sha256()  # the server sends the file from the beginning
            os.ftruncate(part, have)
            self.progress.at(wanted.path, have)
            for data in self.web.body(answer):
                have += len(data)
                if have > wanted.size:
                    self.web.drop()  # stop reading, so that excess data cannot fill the disk
                    break
                fetch_part.write_at(part, data, have - len(data))
                digest.update(data)
                self.count(len(data))
                self.progress.at(wanted.path, have)
        fetch_part.verify(part, wanted, have, digest.hexdigest(), resumed=bool(resumed))

    def count(self, size: int) -> None:
        """Add to the number of bytes downloaded."""
        with self._lock:
            self.bytes += size


def check_disk_space(missing: Sequence[RequestedFile]) -> None:
    """Check that each file system has enough free space for the bytes that are still missing."""
    needed: dict[int, int] = {}
    folders: dict[int, str] = {}
    for file in missing:
        folder = _existing(os.path.dirname(file.path))
        device = os.stat(folder).st_dev
        needed[device] = needed.get(device, 0) + file.size - _arrived(file)
        folders.setdefault(device, folder)
    for device, size in needed.items():
        stats = os.statvfs(folders[device])
        free = stats.f_bavail * stats.f_frsize
        if size > free:
            message = f"{folders[device]}: not enough free disk space: {_gib(size)} needed, {_gib(free)} free"
            hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
            raise AgentError(message, hint=hint, code="disk-full")


def _existing(folder: str) -> str:
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _arrived(file: RequestedFile) -> int:
    """Return the number of bytes that a partial file occupies on disk. Holes in the file do not count."""
    try:
        return min(os.stat(file.path + ".part").st_blocks * 512, file.size)
    except FileNotFoundError:
        return 0


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
