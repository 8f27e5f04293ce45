"""The ranks' logs on the caller's side, byte for byte as the ranks wrote them."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.files import open_for_appending, open_for_reading
from cloudgpu.paths import RunPaths, unwritable
from cloudgpu.run.verdict import Chunk

_TAIL_BYTES: Final = 65536
_LONGEST_LINE_BYTES: Final = 1 << 20
"""A longer line comes in parts, so that no line is too long for this machine."""


class LogStore:
    """The length of each log is the offset to go on from. Several processes may follow one run at once."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        try:
            paths.logs.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise unwritable(paths.logs, err) from err

    def offset(self, rank: int) -> int:
        """Bytes already here."""
        path = self._paths.log(rank)
        return path.stat().st_size if path.exists() else 0

    def add(self, chunk: Chunk) -> bool:
        """Append what of a chunk is not here yet; whether anything was.

        Raises:
            StateError: The disk is full, the log cannot be written, or it lost its end meanwhile.
        """
        path = self._paths.log(chunk.rank)
        try:
            with open_for_appending(path) as log:
                # Whoever else follows this run appends to the same file: it is looked at and written under a lock.
                fcntl.flock(log, fcntl.LOCK_EX)
                here = os.fstat(log.fileno()).st_size
                fresh = chunk.after(here)
                if fresh is None:
                    return False
                if fresh.offset > here:
                    raise StateError(f"{path} was shortened while the run was followed", hint="run the command again")
                log.write(fresh.raw)
        except OSError as err:
            raise unwritable(self._paths.logs, err) from err
        return True

    def lines(self, rank: int) -> Iterator[str]:
        """Everything of one rank that is already here, line by line."""
        path = self._paths.log(rank)
        try:
            with open_for_reading(path) as log:
                while raw := log.readline(_LONGEST_LINE_BYTES):
                    yield from raw.decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as err:
            raise StateError(f"cannot read the log {path}: {err.strerror}", hint="move it away") from err

    def tail(self, rank: int, count: int = 10) -> list[str]:
        """The last lines of one rank."""
        return tail(self._paths.log(rank), count)


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a file; empty when there is none. One that cannot be read must not hide how the run ended."""
    try:
        with open_for_reading(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
    except OSError as err:
        return [f"(the log {path} cannot be read: {err.strerror})"]
