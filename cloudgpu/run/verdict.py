"""The messages that agents send during a run: log chunks, spot interruptions and the final status."""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cloudgpu import bounds
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import RemoteCommandError
from cloudgpu.run.log_times import parse_times, split_by_time
from cloudgpu.text import printable

_UNFINISHED = frozenset({"starting", "running", "stopping"})
_LONGEST_STATE, _LONGEST_REASON = 20, 2000
_ACTIONS = ("terminate", "stop", "hibernate")
_SIGNALS, _CODES = 64, 255
_LARGEST_CHUNK = 1 << 24
_GRAVITY = ("failed", "cancelled", "lost")
"""Failure states in order of precedence. Unknown states come last."""


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
    """End offsets and UTC milliseconds: see `log_times.Times`. Empty if unknown, or else for all of the bytes."""

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


_MAX_INDEX = 1 << 20
_LONGEST_S = 366 * 86400.0


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
