"""What a node printed, on the machine's disk, so that it outlives the node and its host."""

import os
from dataclasses import dataclass
from pathlib import Path

_SHOWN_BYTES = 64 * 1024
_LIMIT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Console:
    """One node's serial console."""

    path: Path

    def write(self, text: str) -> None:
        """Append.

        Raises:
            OSError: The disk is full.
        """
        descriptor = self.open()
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def open(self) -> int:
        """A descriptor that programs of the node may print to; what they print stays in order.

        Raises:
            OSError: The disk is full.
        """
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self) -> bytes:
        """The last 64 KiB, lines ended with CR LF as on a serial line; nothing when nothing was printed."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(max(0, self.path.stat().st_size - _SHOWN_BYTES))
                text = stream.read()
        except FileNotFoundError:
            return b""
        return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")[-_SHOWN_BYTES:]

    def trim(self) -> None:
        """Forget all but the end of a console that grew out of bounds."""
        if self.path.exists() and self.path.stat().st_size > _LIMIT_BYTES:
            with self.path.open("r+b") as stream:
                stream.seek(-_SHOWN_BYTES, os.SEEK_END)
                kept = stream.read()
                stream.seek(0)
                stream.truncate()
                stream.write(kept)
