"""Follow what NCCL writes while a run goes on, without letting it fill the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Callable, Iterable

from .nccl_lines import NcclLines, Transport, slowest

FOLDER = "nccl"
"""Directory of NCCL's files in a run's directory, or in the directory that the run's container shares with the node."""
_STEP_BYTES = 256 * 1024
_READ_BYTES = 4 << 20
"""Bytes read of one log. NCCL names its network when a communicator is created, long before this limit."""
_KEPT_BYTES = 1 << 20
"""Disk space at which a file of NCCL is emptied. NCCL does not rotate it and keeps it open."""
_MOST_FILES = 256


class NcclLogs:
    """The files in which NCCL describes its network, and the ranks' own logs, where it writes if a recipe says so."""

    def __init__(self, folder: str, rank_logs: Iterable[str], empty: Callable[[str], None]) -> None:
        """Prepare the directory.

        Args:
            folder: Directory for one file per process.
            rank_logs: The ranks' logs.
            empty: Function that frees the disk space of the file with this name in the directory.
        """
        self._folder = folder
        self._empty = empty
        self._lines = {path: NcclLines() for path in rank_logs}
        self._offsets: dict[str, int] = {}
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o1777)  # noqa: S103 - programs in a container run as any user

    @property
    def transport(self) -> Transport:
        """The slowest network that NCCL has named so far."""
        return slowest(tuple(transport for lines in self._lines.values() for transport in lines.found))

    @property
    def printed(self) -> bool:
        """Whether NCCL has printed a line."""
        return any(lines.printed for lines in self._lines.values())

    def read(self) -> None:
        """Read what was written since the last call. Logs that cannot be read are left out."""
        with suppress(OSError):
            for name in sorted(os.listdir(self._folder))[:_MOST_FILES]:
                self._lines.setdefault(os.path.join(self._folder, name), NcclLines())
        for path, lines in self._lines.items():
            with suppress(OSError):
                self._read_log(path, lines)
                if os.path.dirname(path) == self._folder and os.lstat(path).st_blocks * 512 > _KEPT_BYTES:
                    self._empty(os.path.basename(path))

    def _read_log(self, path: str, lines: NcclLines) -> None:
        offset = self._offsets.get(path, 0)
        if offset >= _READ_BYTES:
            return
        # A program in a container could put a link or a named pipe here.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            stream.seek(offset)
            data = stream.read(_STEP_BYTES) or b""
        # An unfinished line is read again, unless it is as long as the whole step.
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _STEP_BYTES else 0)
        lines.read(data[:end].decode("utf-8", "replace"))
        self._offsets[path] = offset + end


def empty_file(path: str) -> None:
    """Free the disk space of a file that a program still writes to. The program goes on at its old offset."""
    with suppress(OSError):
        os.truncate(path, 0)
