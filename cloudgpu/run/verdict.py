"""What a gang's agents tell: pieces of logs, and how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudgpu.errors import RemoteCommandError

_GRAVITY = ("failed", "cancelled", "lost")
"""Of several verdicts the one that tells most counts; whatever is not in here and no success is `lost`."""


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one rank's log, or a part of a very long one, and where in the log file they stand.

    Bytes that are not UTF-8 stand in `text` as surrogate escapes, so that the copy is the original, byte for byte.
    """

    rank: int
    offset: int
    size: int
    text: str

    @property
    def raw(self) -> bytes:
        """The bytes of the log."""
        return self.text.encode(errors="surrogateescape")

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Chunk":
        """Read the agent's line.

        Raises:
            RemoteCommandError: It makes no sense.
        """
        try:
            chunk = cls(int(answer["rank"]), int(answer["offset"]), int(answer["bytes"]), str(answer["data"]))
            whole = chunk.size > 0 and len(chunk.raw) == chunk.size
        except (KeyError, TypeError, ValueError) as err:
            raise RemoteCommandError(f"the agent sent a piece of a log that makes no sense: {err!r}") from err
        if not whole:
            raise RemoteCommandError(f"the agent sent {len(chunk.raw)} bytes of a log and called them {chunk.size}")
        return chunk

    def after(self, offset: int) -> "Chunk | None":
        """The part of it that stands at `offset` or behind, None when there is none."""
        if self.offset >= offset:
            return self
        rest = self.raw[offset - self.offset :]
        return Chunk(self.rank, offset, len(rest), rest.decode(errors="surrogateescape")) if rest else None


@dataclass(frozen=True)
class Verdict:
    """How the gang ended."""

    state: str
    exit_code: int | None = None
    rank: int | None = None
    node: int | None = None
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        """Every rank ended with 0."""
        return self.state == "succeeded"

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Verdict":
        """Read the agent's status.

        Raises:
            RemoteCommandError: It makes no sense.
        """
        try:
            first = status.get("first_failure") or {}
            return cls(
                str(status["state"]),
                first.get("exit_code"),
                first.get("rank"),
                first.get("node_index"),
                str(first.get("reason", "")),
            )
        except (AttributeError, KeyError, TypeError) as err:
            raise RemoteCommandError(f"the agent sent a status that makes no sense: {err!r}") from err


def agreed(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of a gang's: all nodes must tell of success, and one that names a rank tells most of a failure."""
    bad = [verdict for verdict in verdicts if not verdict.succeeded]
    if not bad:
        return verdicts[0]

    def gravity(verdict: Verdict) -> tuple[bool, int]:
        known = verdict.state in _GRAVITY
        return verdict.rank is None, _GRAVITY.index(verdict.state) if known else len(_GRAVITY)

    return min(bad, key=gravity)
