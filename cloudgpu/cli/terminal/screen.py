"""Text output of a command: plain lines, and on a terminal colors and a live region for work that takes a while."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TextIO

from cloudgpu.backends.events import ProgressEvent, StageChange
from cloudgpu.cli.lazy import Deferred
from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.cli.terminal.json_text import json_text
from cloudgpu.cli.terminal.live_view import LiveView
from cloudgpu.cli.terminal.output import ColoredText, Line, Output, Region
from cloudgpu.cli.terminal.panel import Mood, Row, framed_panel, plain_panel
from cloudgpu.cli.terminal.progress import ProgressPrinter, rank_prefix
from cloudgpu.cli.terminal.progress_log import ProgressLog
from cloudgpu.clock import SystemClock
from cloudgpu.errors import CloudGpuError
from cloudgpu.run.progress import LogFolder, RankLine, RankOutput, ServiceAddress

_open_display: Deferred[[Output, TextIO, LiveView], Region] = Deferred(
    "cloudgpu.cli.terminal.live_display.open_display"
)

_RECENT = 40
"""Number of printed lines of ranks that a reader can find without searching."""


class Screen:
    """The output of a command as lines. In `json_mode`, lines go to stderr and one JSON document goes to stdout.

    On a terminal, progress is shown in a region that is redrawn in place, unless the output is `verbose`.
    """

    documents: ClassVar[int] = 0
    """Number of JSON documents that this process has written."""
    _shown: ClassVar[Region | None] = None
    """The display whose region is on the terminal. All screens share the terminal."""

    def __init__(
        self, *, json_mode: bool = False, colour: bool | None = None, verbose: bool = False, quits: bool = False
    ) -> None:
        self.json_mode = json_mode
        self._quits = quits
        self._stream = sys.stderr if json_mode else sys.stdout
        self._out = Output(self._stream, colour=colour, quits=quits)
        self._printer = ProgressPrinter(verbose=verbose)
        self._logged = ProgressPrinter(verbose=True)
        self._log = ProgressLog(SystemClock())
        in_place = self._out.is_terminal and not verbose and not quits and os.environ.get("TERM") != "dumb"
        self._view = LiveView() if in_place else None
        self._display: Region | None = None
        self._rank_lines: deque[RankLine] = deque(maxlen=_RECENT)
        self._display_lock = threading.Lock()

    @property
    def width(self) -> int | None:
        """Width of the terminal in columns; None for a pipe or a file, whose width is unlimited."""
        return self._out.columns if self._out.is_terminal else None

    @property
    def compact(self) -> bool:
        """Whether to show only what is important, because the details follow in place or are in the log."""
        return self._view is not None

    def emit(self, event: ProgressEvent) -> None:
        """Show a progress event, and keep it in the progress log."""
        if isinstance(event, LogFolder):
            self._log.open(event.path)
        # The logs of the run keep the output of ranks, and the address of a service contains its token.
        elif not isinstance(event, RankLine | RankOutput | ServiceAddress):
            self._log.add(self._logged.lines(event))
        if isinstance(event, RankOutput) and not self._out.is_terminal:
            self._remember(event)
            self._out.block(event.lines, rank_prefix(event.rank, alone=event.alone))
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
        """Show a stage on a terminal, and only there, for a command whose output has no stages."""
        if self._view is None:
            yield
            return
        started = time.monotonic()
        self.emit(StageChange(name))
        try:
            yield
        finally:
            self.emit(StageChange(name, time.monotonic() - started))

    def _show_region(self, *, active: bool) -> None:
        with self._display_lock:
            if active and self._display is None and self._view is not None:
                self._display = self._out.region = _open_display(self._out, self._stream, self._view)
            if self._display is not None:
                if active:
                    Screen._shown = self._display  # first, because Ctrl-C may come as soon as the region is drawn
                    self._display.start()
                else:
                    self._display.stop()
                    Screen._shown = None

    def _suspend(self) -> None:
        """Erase the region, so that something else can write to the terminal. The next event shows it again."""
        shown, Screen._shown = Screen._shown, None
        if shown is not None:
            shown.stop()

    def line(self, text: Line = "") -> None:
        """Write one line of text."""
        self._out.lines([text])

    def raw(self, text: str) -> None:
        """Write command output or data for another program: unchanged to a pipe, as printable lines to a terminal."""
        self._out.raw(text)

    def lines(self, texts: Iterable[Line]) -> None:
        """Write several lines of text."""
        self._out.lines(texts)

    def block(self, lines: Sequence[str], prefix: str = "") -> None:
        """Write many uncolored lines, each with the same prefix."""
        self._out.block(lines, prefix)

    def records(self, records: Iterable[str]) -> None:
        """Write JSON objects to stdout, one on each line."""
        Screen.documents += 1
        Output(sys.stdout, quits=self._quits).lines(records)

    def panel(self, title: str, rows: Sequence[Row], mood: Mood) -> None:
        """Write the summary of a long-running command."""
        columns = self._out.columns
        self._out.lines(
            framed_panel(title, rows, mood, columns) if self._out.is_terminal else plain_panel(title, rows, columns)
        )

    def document(self, value: Any) -> None:  # noqa: ANN401
        """Write the JSON document of a command."""
        self._suspend()
        Screen.documents += 1
        # `json_text` escapes all characters but printable ASCII, so `Output` does not change these lines.
        Output(sys.stdout, quits=self._quits).lines(json_text(value).split("\n"))

    def remark(self, text: Line) -> None:
        """Write one line to stderr."""
        self._suspend()
        Output(sys.stderr).lines([text])

    def hint(self, text: str) -> None:
        """Write a hint about the next command to stderr. Writes nothing if stderr is not a terminal."""
        out = Output(sys.stderr)
        if out.is_terminal:
            self._suspend()
            out.lines([_hint(text)])

    def error(self, err: CloudGpuError) -> None:
        """Write an error with its details and hint to stderr and, in `json_mode`, as a JSON document to stdout."""
        if self.json_mode:
            self.document(error_json(err))
        if err.summary and _are_read_together(self._stream, sys.stderr):
            self.trouble(err.summary, (), err.hint)
        else:
            self.trouble(err.message, detail_lines(err), err.hint)

    def trouble(self, message: str, details: Sequence[str] = (), hint: str = "") -> None:
        """Write an error's message, details and hint to stderr."""
        self._suspend()
        lines: list[Line] = [(ColoredText("error:", "red"), f" {message}"), *(f"  {line}" for line in details)]
        Output(sys.stderr).lines([*lines, _hint(hint)] if hint else lines)


def _are_read_together(one: TextIO, other: TextIO) -> bool:
    """Return True if two streams go to the same terminal, pipe or file, so that a reader sees the lines of both."""
    try:
        return one is other or os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False


def _hint(text: str) -> Line:
    return (ColoredText("hint:", "cyan"), f" {text}")
