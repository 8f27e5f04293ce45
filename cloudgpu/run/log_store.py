"""Local copies of the rank logs, byte for byte as the ranks wrote them."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.files import open_for_appending, open_for_reading
from cloudgpu.paths import RunPaths, unwritable_error
from cloudgpu.run.verdict import Chunk

_TAIL_BYTES: Final = 65536
_LONGEST_LINE_BYTES: Final = 1 << 20
"""Maximum number of bytes to read at once. Longer lines are read in parts, to limit memory use."""


class LogStore:
    """The append-only local logs of a run. The length of each log is the offset to resume from.

    Several processes may follow the same run at once.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        try:
            paths.logs.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise unwritable_error(paths.logs, err) from err

    def offset(self, rank: int) -> int:
        """Return the number of bytes already downloaded."""
        path = self._paths.log(rank)
        return path.stat().st_size if path.exists() else 0

    def add(self, chunk: Chunk) -> bool:
        """Append the part of a chunk that is not in the log yet. Return True if anything was appended.

        Raises:
            StateError: The disk is full, or the log cannot be written or was truncated by another process.
        """
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
        except OSError as err:
            raise unwritable_error(self._paths.logs, err) from err
        return True

    def lines(self, rank: int) -> Iterator[str]:
        """Yield the lines of one rank that are already downloaded."""
        path = self._paths.log(rank)
        try:
            with open_for_reading(path) as log:
                while raw := log.readline(_LONGEST_LINE_BYTES):
                    yield from raw.decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as err:
            raise StateError(
                f"cannot read the log {path}: {err.strerror}", hint="move the file to another directory"
            ) from err

    def tail(self, rank: int, count: int = 10) -> list[str]:
        """Return the last lines of one rank's log."""
        return tail(self._paths.log(rank), count)


def tail(path: Path, count: int) -> list[str]:
    """Return the last lines of a file, or an empty list if the file does not exist.

    A read error is returned as a line, so that it does not mask the result of the run.
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
