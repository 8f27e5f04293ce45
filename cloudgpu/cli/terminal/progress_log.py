"""Keep every progress message of a command in a file, because a terminal shows only the important ones."""

import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from cloudgpu import files
from cloudgpu.cli.open_resources import open_resources
from cloudgpu.cli.terminal.output import Line, render_line
from cloudgpu.clock import Clock

NAME: Final = "progress.log"
_BUFFERED = 2000
"""Lines that are kept until the folder of the run is known."""
_MOST_BYTES = 16 << 20


class ProgressLog:
    """The progress log of a command. A log that cannot be written does not end the command."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buffer: deque[bytes] = deque(maxlen=_BUFFERED)
        self._file: IO[bytes] | None = None
        self._left = _MOST_BYTES

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines with the current time."""
        now = f"{self._clock.now():%Y-%m-%dT%H:%M:%SZ}"
        texts = [f"{now} {render_line(line, colour=False)}\n".encode() for line in lines]
        with self._lock:
            if self._file is None:
                self._buffer.extend(texts)
            else:
                self._write(texts)

    def open(self, folder: Path) -> None:
        """Append to the log in this folder from now on, beginning with the lines that were added before."""
        with self._lock:
            self._close()
            try:
                files.make_private_directory(folder)
                self._file = files.open_for_appending(folder / NAME)
            except OSError:
                return
            self._left = _MOST_BYTES
            self._write(list(self._buffer))
            self._buffer.clear()
        open_resources.callback(self._close)

    def _write(self, texts: Iterable[bytes]) -> None:
        if self._file is None:
            return
        try:
            for text in texts:
                self._left -= len(text)
                if self._left < 0:
                    return
                self._file.write(text)
            self._file.flush()
        except OSError:
            self._close()

    def _close(self) -> None:
        log, self._file = self._file, None
        if log is not None:
            try:
                log.close()
            except OSError:
                return
