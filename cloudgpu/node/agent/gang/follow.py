"""`follow`: stream the ranks' output from given offsets until the run ends, without losing or repeating lines."""

from __future__ import annotations

import os
import select
import sys
from typing import Any, Callable, Dict

from ..errors import AgentError
from ..untrusted_data import MALFORMED
from . import status

_BATCH_BYTES = 1 << 20
"""Maximum bytes of one message. A longer line is split."""
_BUSY_S, _IDLE_S = 0.05, 0.15

Emit = Callable[[Dict[str, Any]], None]


class LogReader:
    """Reader of one rank's log, starting at an offset."""

    def __init__(self, path: str, rank: int, offset: int) -> None:
        self._path = path
        self._rank = rank
        self._offset = offset
        self._unfinished_size = 0
        self._file: int | None = None

    def next(self, *, whole: bool) -> dict[str, Any] | None:
        """Return the next lines as a message, or None. With `whole`, leave out an unfinished last line."""
        available = self._size()
        if available <= self._offset or (whole and available == self._unfinished_size):
            return None
        data = os.pread(self._open(), _BATCH_BYTES, self._offset)
        size = _cut(data, whole=whole)
        if not size:
            # An unfinished line is not read again until it has grown.
            self._unfinished_size = available
            return None
        # Bytes that are not UTF-8 are sent as surrogate escapes, so that the reader can restore the exact bytes.
        text = data[:size].decode("utf-8", "surrogateescape")
        message = {"rank": self._rank, "offset": self._offset, "bytes": size, "data": text}
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


def verb(spec: dict[str, Any], emit: Emit) -> None:
    """Stream output until the run has ended and all output is delivered. The last line is `{"status": {...}}`.

    Raises:
        AgentError: There is no run, or an offset is invalid.
        BrokenPipeError: The caller has disconnected.
    """
    folder = status.run_dir(spec)
    known = status.read_status(folder)
    offsets = _offsets(spec)
    ranks = [rank["rank"] for rank in known["ranks"]]
    readers = {rank: LogReader(status.log_path(folder, rank), rank, offsets.get(rank, 0)) for rank in ranks}
    _follow(folder, readers, emit, Caller())


class Caller:
    """The process that reads standard output. `wait` detects when it disconnects."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(sys.stdout.fileno(), 0)

    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until the caller disconnects.

        Raises:
            BrokenPipeError: The caller has disconnected.
        """
        if self._poll.poll(seconds * 1000):
            raise BrokenPipeError("the caller disconnected")


def _follow(folder: str, readers: dict[int, LogReader], emit: Emit, caller: Caller) -> None:
    while True:
        known = status.read_status(folder)
        run_ended = known["state"] in status.FINAL
        exited = {rank["rank"] for rank in known["ranks"] if rank["ended_utc"] is not None}
        # Logs are read after the status, so the log of a rank that has exited is complete.
        delivered = [
            _deliver(reader, emit, whole=not run_ended and rank not in exited) for rank, reader in readers.items()
        ]
        if run_ended and not any(delivered):
            emit({"status": known})
            return
        if not run_ended:
            caller.wait(_BUSY_S if any(delivered) else _IDLE_S)


def _deliver(reader: LogReader, emit: Emit, *, whole: bool) -> bool:
    message = reader.next(whole=whole)
    if message is not None:
        emit(message)
    return message is not None


def _cut(data: bytes, *, whole: bool) -> int:
    """Return the number of bytes to deliver now."""
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
        if byte & 0xC0 != 0x80:  # noqa: PLR2004 - the first byte of a character, or a whole one
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
