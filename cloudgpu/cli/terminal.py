"""One output stream: its colours and width, and what happens when nobody reads it any more."""

import os
import shutil
import threading
from collections.abc import Mapping
from typing import TextIO

import typer

UNREAD = 141
"""The exit code of a command whose reader went away: what a shell shows for SIGPIPE."""
FILE_COLUMNS = 100
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Output:
    """Writes whole lines. Once a write fails, the stream is taken for unread and nothing more is written.

    A reader that goes away (`| head`), a closed terminal or a full disk behind a redirection must not stop a
    teardown half-way; only a command that does nothing but show (`quits`) ends with its reader.
    """

    def __init__(self, stream: TextIO, *, colour: bool | None = None, quits: bool = False) -> None:
        self._stream = stream
        self.colour = colour_wanted(stream, os.environ) if colour is None else colour
        self._quits = quits
        self._unread = False
        # Ranks, engine threads and the main thread all speak: a line is written whole or not at all.
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Write and flush.

        Raises:
            typer.Exit: Nobody reads, and the command does nothing but show.
        """
        with self._lock:
            if not self._unread:
                self._write(text)
        if self._unread and self._quits:
            raise typer.Exit(UNREAD)

    def paint(self, text: str, colour: str) -> str:
        """Colour where it is wanted, plain text elsewhere."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at it."""
        return self._stream.isatty()

    @property
    def columns(self) -> int:
        """Width of the terminal; a fixed width where there is none."""
        return shutil.get_terminal_size((FILE_COLUMNS, 24)).columns if self.is_terminal else FILE_COLUMNS

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._unread = True
            _to_nowhere(self._stream)


def colour_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal that can, unless NO_COLOR is set and not empty."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _to_nowhere(stream: TextIO) -> None:
    """Send what is still buffered nowhere, or the interpreter complains about it when it ends."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, handle)
    os.close(nowhere)
