"""The console output of a node, stored outside the node so that it survives the node and its host process."""

import os
from dataclasses import dataclass
from pathlib import Path

_SHOWN_BYTES = 64 * 1024
_LIMIT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Console:
    """The serial console of a node."""

    path: Path

    def write(self, text: str) -> None:
        """Append text."""
        descriptor = self.open()
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def open(self) -> int:
        """Open the console. Return a descriptor to which programs of the node append their output."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self) -> bytes:
        """Return the last 64 KiB with CR LF line endings, as on a serial port, or no bytes if nothing was printed."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(max(0, self.path.stat().st_size - _SHOWN_BYTES))
                text = stream.read()
        except FileNotFoundError:
            return b""
        return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")[-_SHOWN_BYTES:]

    def trim(self) -> None:
        """Discard all but the last 64 KiB if the console has grown beyond 4 MiB."""
        if self.path.exists() and self.path.stat().st_size > _LIMIT_BYTES:
            with self.path.open("r+b") as stream:
                stream.seek(-_SHOWN_BYTES, os.SEEK_END)
                kept = stream.read()
                stream.seek(0)
                stream.truncate()
                stream.write(kept)
