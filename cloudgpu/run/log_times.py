"""When ranks wrote their output: the times in a node's messages, and the times file beside the local copy of a log.

Times are only shown and only select lines, so times that are malformed, damaged or missing count as unknown. The format
of the file is that of the nodes (`node/agent/gang/log_times.py`). An entry of unknown time covers bytes that came
without times, or whose times could not be stored.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.files import open_descriptor
from cloudgpu.node.agent.gang.log_times import ENTRY_BYTES, TimesReader, format_entry

_MOST_TIMES: Final = 4096
"""Maximum times of one message. Agents send no more."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EARLIEST_MS: Final = (bounds.EARLIEST - _EPOCH) // _MILLISECOND
_LATEST_MS: Final = (bounds.LATEST - _EPOCH) // _MILLISECOND - 1

Times = Sequence[tuple[int, int]]
"""End offsets in a log, increasing, and for each the UTC milliseconds by which the bytes before it were written."""


def parse_times(message: Mapping[str, Any], offset: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return the times in a log message from an agent, or none unless they are valid and cover all of its bytes."""
    value = message.get("times")
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_TIMES:
        return ()
    times, end, at = [], offset, _EARLIEST_MS
    try:
        for pair in value:
            next_end, next_at = pair
            end = bounds.checked_count(next_end, end + 1, offset + size)
            at = bounds.checked_count(next_at, at, _LATEST_MS)
            times.append((end, at))
    except (TypeError, ValueError):
        return ()
    return tuple(times) if end == offset + size else ()


def split_by_time(
    pieces: Iterable[bytes], offset: int, entries: Iterator[tuple[int, int | None]]
) -> Iterator[tuple[datetime | None, bytes]]:
    """Yield the lines of a log in groups of the same time; None for lines whose time is unknown.

    A line has the time by which its end was written.

    Args:
        pieces: Consecutive parts of the log that end with a line.
        offset: Offset of the first part in the log.
        entries: End offsets after `offset`, increasing, and UTC milliseconds or None. Bytes after the last are unknown.
    """
    end, at = next(entries, (None, None))
    for raw in pieces:
        begin = 0
        while end is not None and end < offset + len(raw):
            line_end = raw.rfind(b"\n", begin, end - offset) + 1
            if line_end:
                yield _as_datetime(at), raw[begin:line_end]
                begin = line_end
            end, at = next(entries, (None, None))
        if begin < len(raw):
            yield _as_datetime(at), raw[begin:]
        offset += len(raw)


def _as_datetime(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _EPOCH + milliseconds * _MILLISECOND


def append_times(path: Path, start: int, times: Times) -> None:
    """Append the times of the bytes that follow `start` to a local times file, under the lock of its log.

    A file that cannot be written is left as it is: what it lacks is unknown.
    """
    with contextlib.suppress(OSError):
        handle = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            end, at = _usable_end(handle, start)
            gap = [format_entry(start, at, known=False)] if end < start else []
            os.write(handle, b"".join([*gap, *(format_entry(until, max(at, by)) for until, by in times)]))
        finally:
            os.close(handle)


def _usable_end(handle: int, start: int) -> tuple[int, int]:
    """Return the end and the time of a file's last entry, without the rest of an entry that was not completed.

    If the file is damaged or already goes beyond `start`, because its log was deleted, it is emptied.
    """
    reader = TimesReader(handle)
    os.ftruncate(handle, reader.count * ENTRY_BYTES)
    with contextlib.suppress(ValueError):
        end, at, _ = reader.entry(reader.count - 1) if reader.count else (0, 0, False)
        if end <= start:
            return end, at
    os.ftruncate(handle, 0)
    return 0, 0


def stored_times(path: Path, offset: int) -> Iterator[tuple[int, int | None]]:
    """Yield the entries of a local times file that end after `offset`, up to the first that is damaged."""
    with contextlib.suppress(OSError, ValueError), _opened(path) as reader:
        last = offset
        for end, at, known in reader.entries(reader.first_beyond(offset)):
            if end <= last:
                return
            yield end, at if known and _EARLIEST_MS <= at <= _LATEST_MS else None
            last = end


def first_offset_since(path: Path, since: datetime, size: int) -> int | None:
    """Return the offset in a log before which everything was written before `since`; None if that is unknown.

    Args:
        path: The local times file.
        since: A time.
        size: Size of the log.
    """
    if not size:
        return 0
    with contextlib.suppress(OSError, ValueError), _opened(path) as reader:
        first = reader.first_since(-((_EPOCH - since) // _MILLISECOND))
        end, _, known = reader.entry(first - 1) if first else (0, 0, True)
        follows = reader.entry(first)[2] if first < reader.count else end >= size
        if known and follows:
            return min(end, size)
    return None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TimesReader]:
    handle = open_descriptor(path, os.O_RDONLY)
    try:
        yield TimesReader(handle)
    finally:
        os.close(handle)
