"""Local copies of the rank logs, byte for byte as the ranks wrote them."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.files import make_private_directory, open_for_appending, open_for_reading
from cloudgpu.paths import RunPaths, unwritable_error
from cloudgpu.run.agent_messages import Chunk, append_times, first_offset_since, split_by_time, stored_times

_TAIL_BYTES: Final = 65536
_LONGEST_LINE_BYTES: Final = 1 << 20
"""Maximum number of bytes to read at once. Longer lines are read in parts, to limit memory use."""


class LogStore:
    """The append-only local logs of a run. The length of each log is the offset to resume from.

    Several processes may follow the same run at the same time.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        try:
            make_private_directory(paths.logs)
        except OSError as err:
            raise unwritable_error(paths.logs, err) from err

    def offset(self, rank: int) -> int:
        """Return the number of bytes of a rank's log that are already downloaded."""
        path = self._paths.log(rank)
        return path.stat().st_size if path.exists() else 0

    def add(self, chunk: Chunk) -> bool:
        """Append the part of a chunk that is not in the log yet. Return True if anything was appended."""
        path = self._paths.log(chunk.rank)
        try:
            with open_for_appending(path) as log:
                # Other processes may follow the run and append to the same file: check size and write under a lock.
                fcntl.flock(log, fcntl.LOCK_EX)
                current_size = os.fstat(log.fileno()).st_size
                new = chunk.after(current_size)
                if new is None:
                    return False
                if new.offset > current_size:
                    raise StateError(f"{path} was truncated while the run was followed", hint="run the command again")
                log.write(new.raw)
                log.flush()  # times without their bytes would be taken for those of other bytes
                if new.times:
                    append_times(self._paths.log_times(chunk.rank), new.offset, new.times)
        except OSError as err:
            raise unwritable_error(self._paths.logs, err) from err
        return True

    def blocks(self, rank: int, start: int = 0) -> Iterator[tuple[str, ...]]:
        """Yield the lines of a rank's log from byte `start` in blocks, which is much faster than line by line."""
        for raw in self._pieces(rank, start):
            yield tuple(raw.decode(errors="replace").splitlines())

    def timed_blocks(self, rank: int, start: int = 0) -> Iterator[tuple[datetime | None, tuple[str, ...]]]:
        """Yield the lines of a rank's log from byte `start` in blocks, with the time by which each block was written.

        The time is None if it is unknown.
        """
        times = stored_times(self._paths.log_times(rank), start)
        for written_at, raw in split_by_time(self._pieces(rank, start), start, times):
            yield written_at, tuple(raw.decode(errors="replace").splitlines())

    def _pieces(self, rank: int, start: int) -> Iterator[bytes]:
        path = self._paths.log(rank)
        rest = b""
        try:
            with open_for_reading(path) as log:
                log.seek(start)
                while block := log.read(_LONGEST_LINE_BYTES):
                    end = block.rfind(b"\n") + 1
                    if end or len(rest) >= _LONGEST_LINE_BYTES:
                        yield rest + block[:end]
                        rest = block[end:]
                    else:
                        rest += block
        except FileNotFoundError:
            return
        except OSError as err:
            raise unreadable_log_error(path, err) from err
        if rest:
            yield rest

    def start_since(self, rank: int, since: datetime) -> int | None:
        """Return the offset of the first line of a rank's log that was written at or after a time; None if unknown."""
        path = self._paths.log(rank)
        try:
            with open_for_reading(path) as log:
                size = log.seek(0, os.SEEK_END)
                position = first_offset_since(self._paths.log_times(rank), since, size)
                if position is None or position == size:
                    return position
                while position:
                    begin = max(0, position - _LONGEST_LINE_BYTES)
                    log.seek(begin)
                    line_start = log.read(position - begin).rfind(b"\n") + 1
                    if line_start:
                        return begin + line_start
                    position = begin
                return 0
        except FileNotFoundError:
            return 0
        except OSError as err:
            raise unreadable_log_error(path, err) from err

    def start_of_last(self, rank: int, count: int) -> int:
        """Return the offset at which the last `count` lines of a rank's log start."""
        path = self._paths.log(rank)
        try:
            with open_for_reading(path) as log:
                size = log.seek(0, os.SEEK_END)
                # The newline at the end of the log ends its last line, and starts none.
                position = max(0, size - 1) if count else 0
                while position:
                    begin = max(0, position - _LONGEST_LINE_BYTES)
                    log.seek(begin)
                    block = log.read(position - begin)
                    end = len(block)
                    while (end := block.rfind(b"\n", 0, end)) >= 0:
                        count -= 1
                        if not count:
                            return begin + end + 1
                    position = begin
                return 0 if count else size
        except FileNotFoundError:
            return 0
        except OSError as err:
            raise unreadable_log_error(path, err) from err

    def written_at(self, ranks: Sequence[int]) -> datetime | None:
        """Return when a log of these ranks was last extended; None if there is none."""
        times = []
        for rank in ranks:
            with contextlib.suppress(OSError):
                times.append(self._paths.log(rank).stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def tail(self, rank: int, count: int = 10) -> list[str]:
        """Return the last `count` lines of one rank's log."""
        return tail(self._paths.log(rank), count)


def unreadable_log_error(path: Path, err: OSError) -> StateError:
    """Return the error for a local log that cannot be read."""
    return StateError(f"cannot read the log {path}: {err.strerror}", hint="move the file to another directory")


def tail(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a file, or an empty list if the file does not exist.

    Only the last 64 KiB of the file are read. A read error is returned as a line, so that the error does not mask the
    result of the run.
    """
    try:
        with open_for_reading(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
    except OSError as err:
        return [f"(the log {path} cannot be read: {err.strerror})"]
