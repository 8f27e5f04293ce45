"""`follow`: stream the ranks' output from given offsets until the run ends, without losing or repeating lines."""

from __future__ import annotations

import base64
import os
import select
import sys
import zlib
from typing import TYPE_CHECKING, Any, Callable, Dict

from .. import masking
from ..masking import Mask
from ..untrusted_data import MALFORMED, AgentError
from . import status
from .log_times import line_times, modified_ms

if TYPE_CHECKING:
    from ..instance_metadata import SpotNotice

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
