"""Text output of a command: plain lines, and on a terminal colors and a live region for work that takes a while."""

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.cli.terminal.output import (
    Color,
    ColoredText,
    Line,
    Mood,
    Output,
    ProgressStyle,
    Row,
    json_text,
    plain_panel,
    suspend_region,
)
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import printable

if TYPE_CHECKING:
    from cloudgpu.cli.terminal.progress_display import ProgressDisplay
    from cloudgpu.run.progress import ProgressEvent, RankLine


class Screen:
    """The output of a command as lines. In `json_mode`, lines go to stderr and one JSON document goes to stdout.

    On a terminal, progress is shown in a region that is redrawn in place, unless the output is `verbose`.
    """

    documents: ClassVar[int] = 0
    """Number of JSON documents that this process has written."""

    def __init__(
        self, *, json_mode: bool = False, colour: bool | None = None, verbose: bool = False, quits: bool = False
    ) -> None:
        self.json_mode = json_mode
        self._quits = quits
        self._stream = sys.stderr if json_mode else sys.stdout
        self._out = Output(self._stream, colour=colour, quits=quits)
        self._verbose = verbose
        self._in_place = self._out.is_terminal and not verbose and not quits and os.environ.get("TERM") != "dumb"
        self._progress: ProgressDisplay | None = None
        self._progress_lock = threading.Lock()

    @property
    def width(self) -> int | None:
        """Width of the terminal in columns; None for a pipe or a file, whose width is unlimited."""
        return self._out.columns if self._out.is_terminal else None

    @property
    def compact(self) -> bool:
        """Whether to show only what is important, because the details follow in place or are in the log."""
        return self._in_place

    def emit(self, event: "ProgressEvent") -> None:
        """Show a progress event, and keep it in the progress log."""
        self._shown_progress().emit(event)

    @property
    def rank_lines(self) -> "Sequence[RankLine]":
        """The last printed lines of ranks, which a reader can find without searching."""
        return () if self._progress is None else self._progress.rank_lines

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Show a stage on a terminal, and only there, for a command whose output has no stages."""
        if not self._in_place:
            yield
            return
        with self._shown_progress().working(name):
            yield

    def _shown_progress(self) -> "ProgressDisplay":
        with self._progress_lock:
            if self._progress is None:
                # Most commands show no progress, and their start would wait for the import of all event types.
                from cloudgpu.cli.terminal.progress_display import ProgressDisplay  # noqa: PLC0415

                style: ProgressStyle = "in-place" if self._in_place else "verbose" if self._verbose else "lines"
                self._progress = ProgressDisplay(self._out, self._stream, style)
            return self._progress

    def line(self, text: str = "") -> None:
        """Write one sentence, wrapped to the width of the terminal."""
        self.wrapped([text])

    def raw(self, text: str) -> None:
        """Write command output or data for another program: unchanged to a pipe, as printable lines to a terminal."""
        self._out.raw(text)

    def lines(self, texts: Iterable[Line]) -> None:
        """Write lines that must not be wrapped, or that already are."""
        self._out.lines(texts)

    def wrapped(self, texts: Sequence[str]) -> None:
        """Write several lines of prose, wrapped to the width of the terminal."""
        self._out.lines(wrap_lines([printable(text) for text in texts], self.width))

    def block(self, lines: Sequence[str], prefix: str = "") -> None:
        """Write many uncolored lines, each with the same prefix."""
        self._out.block(lines, prefix)

    def records(self, records: Iterable[str]) -> None:
        """Write JSON objects to stdout, one on each line."""
        Screen.documents += 1
        Output(sys.stdout, quits=self._quits).lines(records)

    def panel(self, title: str, rows: Sequence[Row], mood: Mood) -> None:
        """Write the summary of a long-running command."""
        if not self._out.is_terminal:
            self._out.lines(plain_panel(title, rows, self._out.columns))
            return
        from cloudgpu.cli.terminal.rich_drawing import framed_panel  # noqa: PLC0415 - imports rich

        self._out.lines(framed_panel(title, rows, mood, self._out.columns))

    def document(self, value: Any) -> None:  # noqa: ANN401
        """Write the JSON document of a command."""
        suspend_region()
        Screen.documents += 1
        # `json_text` escapes all characters but printable ASCII, so `Output` does not change these lines.
        Output(sys.stdout, quits=self._quits).lines(json_text(value).split("\n"))

    def remark(self, text: str) -> None:
        """Write one sentence to stderr, wrapped to the width of the terminal."""
        suspend_region()
        out = Output(sys.stderr)
        out.lines(_wrapped(out, text))

    def error_lines(self, lines: Iterable[str]) -> None:
        """Write lines of another program to stderr, which must not be wrapped."""
        suspend_region()
        Output(sys.stderr).lines(lines)

    def hint(self, text: str) -> None:
        """Write a hint about the next command to stderr. Writes nothing if stderr is not a terminal."""
        out = Output(sys.stderr)
        if out.is_terminal:
            suspend_region()
            out.lines(_labeled(out, "hint:", "cyan", text))

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
        suspend_region()
        out = Output(sys.stderr)
        lines = _labeled(out, "error:", "red", message)
        lines += [wrapped for line in details for wrapped in _wrapped(out, f"  {line}")]
        out.lines([*lines, *_labeled(out, "hint:", "cyan", hint)] if hint else lines)


def _are_read_together(one: TextIO, other: TextIO) -> bool:
    """Return True if two streams go to the same terminal, pipe or file, so that a reader sees the lines of both."""
    try:
        return one is other or os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False


def _wrapped(out: Output, text: str) -> list[str]:
    return wrap_lines([printable(text)], out.columns if out.is_terminal else None)


def _labeled(out: Output, label: str, colour: Color, text: str) -> list[Line]:
    first, *more = _wrapped(out, f"{label} {text}")
    return [(ColoredText(label, colour), first.removeprefix(label)), *more]
