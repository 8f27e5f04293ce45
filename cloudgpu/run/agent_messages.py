"""The messages that agents send during a run: log chunks with their times, spot interruptions and the final status.

Times are only shown and only select lines, so times that are malformed, damaged or missing count as unknown. The
format of the file is that of the nodes (`node/agent/gang/logs.py`). An entry of unknown time covers bytes that
came without times, or whose times could not be stored.
"""

import base64
import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import RemoteCommandError
from cloudgpu.files import open_descriptor
from cloudgpu.node.agent.gang.logs import ENTRY_BYTES, TimesReader, format_entry
from cloudgpu.text import printable

_MOST_TIMES: Final = 4096
"""Maximum times of one message. Agents send no more."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EARLIEST_MS: Final = (bounds.EARLIEST - _EPOCH) // _MILLISECOND
_LATEST_MS: Final = (bounds.LATEST - _EPOCH) // _MILLISECOND - 1

Times = Sequence[tuple[int, int]]
"""End offsets in a log, increasing, and for each the UTC milliseconds by which the bytes before it were written."""
_UNFINISHED = frozenset({"starting", "running", "stopping"})
_ACTIONS = ("terminate", "stop", "hibernate")
_LARGEST_CHUNK = 1 << 24
_GRAVITY = ("failed", "cancelled", "lost")
"""Failure states in order of precedence. Unknown states come last."""
_MAX_INDEX = 1 << 20
_LONGEST_S = 366 * 86400.0


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


_LONGEST_STATE, _LONGEST_REASON = 20, 2000
_SIGNALS, _CODES = 64, 255


@dataclass(frozen=True)
class Chunk:
    """Part of a rank's log, and its offset in the log file.

    The log is kept as bytes, because bytes that are not UTF-8 must reach the local copy, and non-ASCII text takes long
    to decode and encode.
    """

    rank: int
    offset: int
    size: int
    raw: bytes
    times: tuple[tuple[int, int], ...] = ()
    """End offsets and UTC milliseconds: see `Times`. Empty if unknown, or else for all of the bytes."""

    @property
    def text(self) -> str:
        """The log as text, with surrogate escapes for bytes that are not UTF-8."""
        return self.raw.decode(errors="surrogateescape")

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Chunk":
        """Parse a log message from an agent."""
        try:
            rank, offset, size = (bounds.checked_count(answer[name]) for name in ("rank", "offset", "bytes"))
            chunk = cls(rank, offset, size, _log_bytes(answer, size), parse_times(answer, offset, size))
            size = len(chunk.raw)
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as err:
            raise RemoteCommandError(f"the agent sent a malformed log chunk: {err!r}"[:500]) from err
        if not 0 < size == chunk.size:
            raise RemoteCommandError(f"the agent sent {size} log bytes but announced {chunk.size}")
        return chunk

    def after(self, offset: int) -> "Chunk | None":
        """Return the part of the chunk at or after byte `offset` of the log, or None if there is no such part."""
        if self.offset >= offset:
            return self
        rest = self.raw[offset - self.offset :]
        if not rest:
            return None
        times = tuple((end, at) for end, at in self.times if end > offset)
        return Chunk(self.rank, offset, len(rest), rest, times)

    def by_time(self) -> Iterator[tuple[datetime | None, bytes]]:
        """Yield the chunk's lines in groups that were written by the same time; None if it is unknown."""
        return split_by_time([self.raw], self.offset, iter(self.times))


def _log_bytes(answer: Mapping[str, Any], size: int) -> bytes:
    """Return the log bytes of a message. Compressed bytes are decompressed only up to the announced size."""
    if "zlib" not in answer:
        return str(answer["data"]).encode(errors="surrogateescape")
    packed = base64.b64decode(answer["zlib"], validate=True)
    return zlib.decompressobj().decompress(packed, min(size, _LARGEST_CHUNK) + 1)


@dataclass(frozen=True)
class SpotNotice:
    """The notice that AWS will interrupt a spot node.

    Attributes:
        node: Index of the node.
        action: What AWS does: `terminate`, `stop` or `hibernate`.
        at: When AWS does it at the earliest; None if the notice has no valid time.
    """

    node: int
    action: str
    at: datetime | None

    @classmethod
    def of(cls, node: int, answer: object) -> "SpotNotice":
        """Parse an agent's message. The content is untrusted, because the node may be compromised."""
        if not isinstance(answer, dict):
            raise RemoteCommandError("the agent sent a malformed interruption notice")
        action = answer.get("action")
        try:
            at = bounds.parse_time(str(answer.get("time")))
        except ValueError:
            at = None
        return cls(node, str(action) if action in _ACTIONS else "terminate", at)


@dataclass(frozen=True)
class Verdict:
    """The final status of a run, as reported by one node or combined from all nodes.

    Attributes:
        teller: Index of the node that reported the status; None if the status does not come from a single node.
        ran_s: Seconds from the start of the first rank to the end of the last; None if unknown.
    """

    state: str
    exit_code: int | None = None
    rank: int | None = None
    node: int | None = None
    reason: str = ""
    teller: int | None = None
    ran_s: float | None = None

    @property
    def succeeded(self) -> bool:
        """True if every rank exited with 0."""
        return self.state == "succeeded"

    @classmethod
    def of(cls, status: object, teller: int | None = None) -> "Verdict":
        """Parse an agent's final status. The content is untrusted, because the node may be compromised."""
        fields = status if isinstance(status, dict) else {}
        state, first = fields.get("state"), fields.get("first_failure") or {}
        if not isinstance(state, str) or not state or state in _UNFINISHED:
            raise _malformed_status("no final state")
        if not isinstance(first, dict):
            raise _malformed_status("first_failure is not an object")
        return cls(
            state[:_LONGEST_STATE],
            _integer_field(first, "exit_code", -_SIGNALS, _CODES),
            _integer_field(first, "rank", 0, _MAX_INDEX),
            _integer_field(first, "node_index", 0, _MAX_INDEX),
            printable(str(first.get("reason") or "")[:_LONGEST_REASON]),
            teller,
            _ran_s(fields.get("ranks")),
        )


def _ran_s(ranks: object) -> float | None:
    """Return the seconds between the start of a node's first rank and the end of its last; None if unknown.

    The times are untrusted and only shown, so an impossible time counts as unknown.
    """
    try:
        times = [
            (datetime.fromisoformat(rank["started_utc"]), datetime.fromisoformat(rank["ended_utc"]))
            for rank in (ranks if isinstance(ranks, list) else [])
        ]
        ran_s = (max(ended for _, ended in times) - min(started for started, _ in times)).total_seconds()
    except MALFORMED:
        return None
    return ran_s if 0 <= ran_s <= _LONGEST_S else None


def _integer_field(first: Mapping[str, Any], name: str, lowest: int, highest: int) -> int | None:
    """Return an integer field of a status, or None if it is missing."""
    value = first.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise _malformed_status(f"{name} is {str(value)[:40]!r}")
    return value


def _malformed_status(what: str) -> RemoteCommandError:
    return RemoteCommandError(f"the agent sent a malformed status: {what}")


def credible_verdicts(verdicts: Sequence[Verdict], ranks: Mapping[int, Sequence[int]]) -> list[Verdict]:
    """Return the final statuses, without failed ranks that do not exist or whose own node reports success.

    A node may report another node's rank, because the head node decides the status of the run. If the node that ran
    the rank reports success, or no node has that rank, the run is still considered failed, but no rank is blamed.
    """
    by_node = {verdict.teller: verdict for verdict in verdicts if verdict.teller is not None}
    return [_without_contradiction(verdict, by_node, ranks) for verdict in verdicts]


def _without_contradiction(
    verdict: Verdict, by_node: Mapping[int, Verdict], ranks: Mapping[int, Sequence[int]]
) -> Verdict:
    if verdict.rank is None:
        return verdict
    owner = next((node for node, own in ranks.items() if verdict.rank in own), None)
    claim = f"node {verdict.teller} reports that rank {verdict.rank} failed first"
    if owner is None:
        reason = f"{claim}, but there is no such rank"
    elif verdict.teller != owner and owner in by_node and by_node[owner].succeeded:
        reason = f"{claim}, but node {owner}, which ran it, reports success"
    else:
        return replace(verdict, node=owner)
    return replace(verdict, rank=None, exit_code=None, reason=reason)


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the final statuses of all nodes.

    A failure takes precedence over success, and a failure that identifies a rank takes precedence over other failures.
    """
    bad = [verdict for verdict in verdicts if not verdict.succeeded]
    ran_s = max((verdict.ran_s for verdict in verdicts if verdict.ran_s is not None), default=None)
    if not bad:
        return replace(verdicts[0], ran_s=ran_s)

    def gravity(verdict: Verdict) -> tuple[bool, int]:
        known = verdict.state in _GRAVITY
        return verdict.rank is None, _GRAVITY.index(verdict.state) if known else len(_GRAVITY)

    return replace(min(bad, key=gravity), ran_s=ran_s)
