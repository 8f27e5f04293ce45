"""The progress of a command: lines, a region that is redrawn in place on a terminal, and the progress log.

The log file keeps every message, because a terminal shows only the important ones.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final, TextIO

from cloudgpu import files
from cloudgpu.cli.command_end import add_failure_note, open_resources
from cloudgpu.cli.terminal.live_view import LiveView
from cloudgpu.cli.terminal.output import (
    Line,
    Output,
    ProgressStyle,
    Region,
    render_line,
    set_shown_region,
)
from cloudgpu.cli.terminal.progress_lines import ProgressPrinter, rank_prefix
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.run.progress import LogFolder, ProgressEvent, RankLine, RankOutput, ServiceAddress, StageChange
from cloudgpu.text import command

NAME: Final = "progress.log"
_BUFFERED = 2000
"""Lines that are kept until the folder of the run is known."""
_MOST_BYTES = 16 << 20
_RECENT: Final = 40
"""Number of printed lines of ranks that a reader can find without searching."""


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


class ProgressDisplay:
    """Shows progress events in place or as lines; `verbose` keeps every line."""

    def __init__(self, out: Output, stream: TextIO, style: ProgressStyle) -> None:
        self._out = out
        self._stream = stream
        self._printer = ProgressPrinter(verbose=style == "verbose")
        self._logged = ProgressPrinter(verbose=True)
        self._log = ProgressLog(SystemClock())
        self._view = LiveView() if style == "in-place" else None
        self._display: Region | None = None
        self._rank_lines: deque[RankLine] = deque(maxlen=_RECENT)
        self._display_lock = threading.Lock()

    def emit(self, event: ProgressEvent) -> None:
        """Show a progress event, and keep it in the progress log."""
        if isinstance(event, LogFolder):
            self._log.open(event.path)
            if self._view is not None:  # in a pipe and with `verbose`, every message is shown
                add_failure_note("progress", partial(_progress_log_note, event.path / NAME))
        # The logs of the run keep the output of ranks, and the address of a service contains its token.
        elif not isinstance(event, RankLine | RankOutput | ServiceAddress):
            self._log.add(self._logged.lines(event))
        if isinstance(event, RankOutput) and not self._out.is_terminal:
            self._remember(event)
            self._out.block(event.lines, rank_prefix(event.rank, single_rank=event.single_rank))
            return
        if self._view is None:
            self._print(event)
            return
        lines = self._view.take(event)
        self._show_region(active=self._view.active)
        if lines is None:
            self._print(event)
        else:
            self._out.lines(lines)

    def _print(self, event: ProgressEvent) -> None:
        if isinstance(event, RankLine | RankOutput):
            self._remember(event)
        self._out.lines(self._printer.lines(event))

    def _remember(self, output: RankLine | RankOutput) -> None:
        if isinstance(output, RankLine):
            self._rank_lines.append(output)
        else:
            self._rank_lines.extend(RankLine(output.rank, line) for line in output.lines[-_RECENT:])

    @property
    def rank_lines(self) -> Sequence[RankLine]:
        """The last printed lines of ranks, which a reader can find without searching."""
        return self._rank_lines

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Show a stage until the context ends."""
        started = time.monotonic()
        self.emit(StageChange(name))
        try:
            yield
        finally:
            self.emit(StageChange(name, time.monotonic() - started))

    def _show_region(self, *, active: bool) -> None:
        with self._display_lock:
            if active and self._display is None and self._view is not None:
                from cloudgpu.cli.terminal.rich_drawing import LiveDisplay  # noqa: PLC0415 - imports rich

                self._display = LiveDisplay(self._stream, self._view, colour=self._out.colour)
                self._out.region = self._display
            if self._display is not None:
                if active:
                    set_shown_region(self._display)  # first, because Ctrl-C may come as soon as the region is drawn
                    self._display.start()
                else:
                    self._display.stop()
                    set_shown_region(None)


def _progress_log_note(path: Path) -> str:
    """Return a note that names the progress log; empty if the log was not written or has been deleted."""
    return f"all progress messages are in {command(str(path))}" if path.exists() else ""
