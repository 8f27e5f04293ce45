"""When the ranks' output was written. Ranks append to their logs themselves, so the supervisor watches the logs grow.

Each log has a times file, with an entry for every second in which the log grew: `END MILLISECONDS`, a byte
offset in the log and a UTC time. The bytes before END that no earlier entry covers were written by that time, and after
the time of the earlier entry. Entries have a fixed width, so that they can be found by bisection. The client keeps a
file in the same format beside its copy of a log.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from typing import Iterable, Iterator, Tuple

from ..untrusted_data import LARGEST

ENTRY_BYTES = 31
_ENTRY = re.compile(rb"([0-9]{16})([ ?])([0-9]{13})\n")
_INTERVAL_S = 1.0
_BATCH = 4096
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Entry = Tuple[int, int, bool]
"""End offset, UTC milliseconds, and whether the time is known. The file of a node has only known times."""


def format_entry(end: int, milliseconds: int, *, known: bool = True) -> bytes:
    """Return an entry of a times file."""
    return b"%016d%s%013d\n" % (end, b" " if known else b"?", milliseconds)


class TimesReader:
    """Reader of an open times file. An incomplete last entry, which may still be being written, is ignored."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.count = os.fstat(handle).st_size // ENTRY_BYTES

    def entry(self, index: int) -> Entry:
        """Return an entry."""
        return _parse(os.pread(self._handle, ENTRY_BYTES, index * ENTRY_BYTES))

    def entries(self, index: int = 0) -> Iterator[Entry]:
        """Yield the entries from an index."""
        while batch := os.pread(self._handle, _BATCH * ENTRY_BYTES, index * ENTRY_BYTES):
            complete = len(batch) // ENTRY_BYTES
            for start in range(0, complete * ENTRY_BYTES, ENTRY_BYTES):
                yield _parse(batch[start : start + ENTRY_BYTES])
            if not complete:
                return
            index += complete

    def first_beyond(self, offset: int) -> int:
        """Return the index of the entry that covers the byte at `offset` of the log, or the count if there is none."""
        return self._first(0, offset + 1)

    def first_since(self, milliseconds: int) -> int:
        """Return the index of the first entry with at least this time, or the count if there is none."""
        return self._first(1, milliseconds)

    def _first(self, field: int, least: int) -> int:
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] < least:
                low = middle + 1
            else:
                high = middle
        return low


def _parse(entry: bytes) -> Entry:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError("not an entry of a times file")
    return int(match[1]), int(match[3]), match[2] == b" "


def times_path(log: str) -> str:
    """Return the path of the times file of a log."""
    return f"{log[: -len('.log')]}.times"


class LogTimes:
    """The times files of a node's logs. A file that cannot be written is removed, and its log then has no times."""

    def __init__(self, logs: Iterable[str]) -> None:
        """Create the files, before the ranks print anything: a log without a file is one whose times are unknown."""
        self._logs = [_WatchedLog(log) for log in logs]

    def record(self, now: float, *, last: bool = False) -> None:
        """Record the logs that have grown, each at most once a second unless it is the last time."""
        for log in self._logs:
            log.record(now, last=last)


class _WatchedLog:
    """One log, and the last entry of its times file."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._path = times_path(log)
        self._end = self._milliseconds = 0
        self._next_at = -math.inf
        self._failed = False
        self._write(b"", os.O_CREAT | os.O_TRUNC)

    def record(self, now: float, *, last: bool) -> None:
        if self._failed or (now < self._next_at and not last):
            return
        try:
            log = os.stat(self._log)
        except OSError:  # the rank has not started yet
            return
        if log.st_size > self._end:
            self._end, self._milliseconds = log.st_size, max(self._milliseconds, modified_ms(log))
            self._write(format_entry(self._end, self._milliseconds))
            self._next_at = now + _INTERVAL_S

    def _write(self, entry: bytes, create: int = 0) -> None:
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | create | _OPEN, 0o600)
            try:
                complete = os.write(handle, entry) == len(entry)
            finally:
                os.close(handle)
        except OSError:
            complete = False
        if not complete:
            # Without this entry, the next one would also cover its bytes, with a time that is too late.
            self._failed = True
            with suppress(OSError):
                os.unlink(self._path)


def modified_ms(info: os.stat_result) -> int:
    """Return when a file was modified, in UTC milliseconds. For a log, that is when its last byte was written."""
    return info.st_mtime_ns // 1_000_000


def line_times(log: str, offset: int, data: bytes, modified: int, most: int) -> tuple[int, list[list[int]]]:
    """Return how many bytes of the data to deliver, and their times as pairs of end offset and UTC milliseconds.

    A time is needed only where a line ends. With more than `most` of them, fewer bytes are delivered.

    Args:
        log: Path of the log.
        offset: Offset of the data in the log.
        data: Bytes of the log; the last line may be unfinished.
        modified: UTC milliseconds when the log was last modified, for bytes that have no entry yet.
        most: Maximum number of times, at least 1.

    Returns:
        The number of bytes, at least 1 unless there are none, and the times, which cover all of them; no times if the
        log has no times file, because an earlier version of the agent started the run, or if the file is damaged.
    """
    try:
        handle = os.open(times_path(log), os.O_RDONLY | _OPEN)
    except OSError:
        return len(data), []
    try:
        reader = TimesReader(handle)
        entries = reader.entries(reader.first_beyond(offset))
        return _times_of_lines(entries, offset, data, modified, most)
    except (ValueError, OSError):
        return len(data), []
    finally:
        os.close(handle)


def _times_of_lines(
    entries: Iterator[Entry], offset: int, data: bytes, modified: int, most: int
) -> tuple[int, list[list[int]]]:
    times: list[list[int]] = []
    begin, milliseconds = 0, 0
    while begin < len(data):
        entry = next(entries, None)
        end, milliseconds = (
            (LARGEST, max(milliseconds, modified)) if entry is None else (entry[0], max(milliseconds, entry[1]))
        )
        stop = min(end - offset, len(data))
        if stop <= begin:
            raise ValueError("the offsets do not increase")
        line_end = data.rfind(b"\n", begin, stop) + 1
        if line_end and len(times) == most - 1 and stop < len(data):
            return line_end, [*times, [offset + line_end, milliseconds]]
        if line_end or stop == len(data):
            times.append([offset + stop, milliseconds])
        begin = stop
    return len(data), times
