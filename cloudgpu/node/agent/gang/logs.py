"""The ranks' logs. `follow` streams them from given offsets until the run ends, without losing or repeating lines.

Ranks append to their logs themselves, so the supervisor watches the logs grow to know when the output was written. Each
log has a times file, with an entry for every second in which the log grew: `END MILLISECONDS`, a byte offset in the log
and a UTC time. The bytes before END that no earlier entry covers were written by that time, and after the time of the
earlier entry. Entries have a fixed width, so that they can be found by bisection. The client keeps a file in the same
format beside its copy of a log.
"""

from __future__ import annotations

import base64
import math
import os
import re
import select
import sys
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, Tuple

from .. import masking
from ..masking import Mask
from ..untrusted_data import LARGEST, MALFORMED, AgentError
from . import status

if TYPE_CHECKING:
    from ..instance_metadata import SpotNotice

ENTRY_BYTES = 31
_ENTRY = re.compile(rb"([0-9]{16})([ ?])([0-9]{13})\n")
_INTERVAL_S = 1.0
_ENTRIES_AT_ONCE = 4096
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_BATCH_BYTES = 1 << 20
"""Maximum bytes of one message. A longer line is split."""
_USUAL_BYTES = 1 << 18
"""Maximum bytes of a message that has a whole line. Larger ones would be no faster and take the caller more memory."""
_COMPRESSED_BYTES = 1 << 14
"""Minimum bytes of a chunk that is sent compressed."""
_MOST_TIMES = 4096
"""Maximum times of one message, some 100 KB."""
_BUSY_S, _IDLE_S = 0.05, 0.15

Emit = Callable[[Dict[str, Any]], None]
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
        while batch := os.pread(self._handle, _ENTRIES_AT_ONCE * ENTRY_BYTES, index * ENTRY_BYTES):
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


class LogReader:
    """Reader of one rank's log, starting at an offset."""

    def __init__(self, path: str, rank: int, offset: int, mask: Mask | None = None) -> None:
        self._path = path
        self._mask = mask or Mask(())
        self._rank = rank
        self._offset = offset
        self._unfinished_size = 0
        self._file: int | None = None

    def next(self, *, whole: bool) -> dict[str, Any] | None:
        """Return the next output as a message, or None if there is none. `whole` omits a partial last line."""
        available = self._size()
        if available <= self._offset or (whole and available == self._unfinished_size):
            return None
        data = os.pread(self._open(), _USUAL_BYTES, self._offset)
        if len(data) == _USUAL_BYTES and b"\n" not in data:
            data = os.pread(self._open(), _BATCH_BYTES, self._offset)
        size = _cut(data, whole=whole)
        if not size:
            # An unfinished line is not read again until it has grown.
            self._unfinished_size = available
            return None
        # The log is measured after it was read, so all of the data had been written at that time.
        modified = modified_ms(os.fstat(self._open()))
        size, times = line_times(self._path, self._offset, data[:size], modified, _MOST_TIMES)
        shown = masking.masked_at(self._open(), self._offset, data[:size], self._mask)
        message = {"rank": self._rank, "offset": self._offset, "bytes": size, **_encoded(shown)}
        if times:
            message["times"] = times
        self._offset += size
        return message

    def _size(self) -> int:
        try:
            return os.fstat(self._open()).st_size
        except FileNotFoundError:
            return 0

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._file


def _encoded(data: bytes) -> dict[str, str]:
    """Return a log chunk as text. Long chunks are compressed, because a fast rank would wait for the network."""
    if len(data) >= _COMPRESSED_BYTES:
        return {"zlib": base64.b64encode(zlib.compress(data, 1)).decode()}
    # Bytes that are not UTF-8 are sent as surrogate escapes, so that the client can restore the exact bytes.
    return {"data": data.decode("utf-8", "surrogateescape")}


def follow_run(spec: dict[str, Any], emit: Emit) -> None:
    """Stream output until the run has ended and all output is delivered. The last message is `{"status": {...}}`.

    With `once`, only the output that exists now is sent, and the last message is `{"copied": true}`.
    A message has the `times` of its bytes as pairs `[END_OFFSET, UTC_MILLISECONDS]`, unless they were not recorded.
    With `spot`, `{"interruption": {"action": ..., "time": ...}}` is sent when AWS announces to interrupt the node.
    `{"transport": {...}}` is sent whenever the network that the run uses between nodes becomes known or changes.
    """
    folder = status.run_dir(spec)
    known = status.read_status(folder)
    offsets = _offsets(spec)
    ranks = [rank["rank"] for rank in known["ranks"]]
    mask = masking.read_mask(folder)
    readers = {rank: LogReader(status.log_path(folder, rank), rank, offsets.get(rank, 0), mask) for rank in ranks}
    if spec.get("once"):
        _copy(readers, emit)
    else:
        _follow(folder, readers, emit, Caller(), _spot_notice() if spec.get("spot") else None)


class Caller:
    """The process that reads this program's standard output. `wait` raises an error when that process disconnects."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(sys.stdout.fileno(), 0)

    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until the caller disconnects."""
        if self._poll.poll(seconds * 1000):
            raise BrokenPipeError("the caller disconnected")


def _spot_notice() -> SpotNotice:
    # The module imports an HTTP client with TLS, which only spot nodes need.
    from ..instance_metadata import SpotNotice  # noqa: PLC0415

    return SpotNotice()


def _copy(readers: dict[int, LogReader], emit: Emit) -> None:
    for reader in readers.values():
        while _deliver(reader, emit, whole=True):
            pass
    emit({"copied": True})


def _follow(
    folder: str, readers: dict[int, LogReader], emit: Emit, caller: Caller, spot: SpotNotice | None = None
) -> None:
    transport = None
    while True:
        known = status.read_status(folder)
        run_ended = known["state"] in status.FINAL
        # Runs that an earlier version started report none.
        if known.get("transport") not in (None, transport):
            transport = known["transport"]
            emit({"transport": transport})
        interruption = None if spot is None else spot.take()
        if interruption is not None:
            emit({"interruption": interruption})
        exited = {rank["rank"] for rank in known["ranks"] if rank["ended_utc"] is not None}
        # Logs are read after the status, so the log of a rank that has exited is complete.
        delivered = [
            _deliver(reader, emit, whole=not run_ended and rank not in exited) for rank, reader in readers.items()
        ]
        if run_ended and not any(delivered):
            emit({"status": known})
            return
        if not run_ended:
            caller.wait(_pause_s(delivered))


def _pause_s(delivered: list[int]) -> float:
    """Return how long to wait after messages of these sizes: not at all if a rank has probably printed more."""
    if max(delivered, default=0) > _USUAL_BYTES // 2:
        return 0
    return _BUSY_S if any(delivered) else _IDLE_S


def _deliver(reader: LogReader, emit: Emit, *, whole: bool) -> int:
    """Send the next output of a rank, and return its size in bytes."""
    message = reader.next(whole=whole)
    if message is None:
        return 0
    emit(message)
    return int(message["bytes"])


def _cut(data: bytes, *, whole: bool) -> int:
    """Return the number of bytes to deliver now, up to the last newline if there is one."""
    end = data.rfind(b"\n") + 1
    if end or not data:
        return end
    if len(data) < _BATCH_BYTES:
        return 0 if whole else len(data)
    return len(data) - _split_character(data)


def _split_character(data: bytes) -> int:
    """Return the number of trailing bytes that belong to an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # noqa: PLR2004 - the first byte of a character, or a whole character
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004
            return back if length > back else 0
    return 0


def _offsets(spec: dict[str, Any]) -> dict[int, int]:
    offsets = spec.get("offsets") or {}
    try:
        pairs: list[tuple[int, int]] = [(int(rank), int(offset)) for rank, offset in offsets.items()]
    except MALFORMED:
        raise AgentError("follow: offsets must map ranks to byte offsets") from None
    if any(offset < 0 for _, offset in pairs):
        raise AgentError("follow: an offset is negative")
    return dict(pairs)
