"""Draw the live region at the bottom of a terminal, and panels with a frame.

This module imports rich, which takes long, so it is imported only when something is drawn on a terminal.
"""

from collections.abc import Sequence
from typing import IO, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cloudgpu.cli.command_end import open_resources
from cloudgpu.cli.terminal.interruption import interruptions
from cloudgpu.cli.terminal.live_view import LiveView
from cloudgpu.cli.terminal.output import Color, ColoredText, Line, Mood, Row, render_line
from cloudgpu.text import printable

_PER_S = 8
_WIDEST = 110


class LiveDisplay:
    """The region of a `LiveView` on a terminal. Lines that stay are printed above it."""

    def __init__(self, stream: TextIO, view: LiveView, *, colour: bool) -> None:
        self._console = _Console(
            file=cast("IO[str]", _Lenient(stream)),
            force_terminal=True,
            color_system="standard" if colour else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )
        self._region = _Region(view, colour=colour)
        self._live: Live | None = None
        open_resources.callback(self.stop)

    @property
    def running(self) -> bool:
        """Whether the region is on the screen."""
        return self._live is not None

    def start(self) -> None:
        """Show the region, unless it is already shown."""
        if self._live is None:
            self._live = Live(
                get_renderable=lambda: self._region,
                console=self._console,
                transient=True,
                refresh_per_second=_PER_S,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            with interruptions.deferred():  # rich starts a thread after it has drawn the region
                self._live.start(refresh=True)

    def stop(self) -> None:
        """Erase the region."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print(self, text: str) -> None:
        """Write complete lines above the region. The text may contain colors, but no other escape sequences."""
        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)


class _Region:
    def __init__(self, view: LiveView, *, colour: bool) -> None:
        self._view, self._colour = view, colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[Line] = self._view.region(options.max_width, options.size.height)
        yield Text.from_ansi("\n".join(render_line(line, colour=self._colour) for line in lines))


class _Console(Console):
    """A console that never hides the cursor, because a command that is killed could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing."""
        del show
        return False


class _Lenient:
    """A terminal that may be closed at any time, which must not stop the command or one of rich's threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return True


def framed_panel(title: str, rows: Sequence[Row], mood: Mood, columns: int) -> list[Line]:
    """Return the lines of the panel, with a frame whose color shows the outcome."""
    # Return segments instead of text. `Output` adds the colors later, so text in the rows cannot forge a color. Width
    # and color system are fixed, because rich would otherwise derive them from the environment.
    console = Console(
        width=min(columns, _WIDEST), force_terminal=True, color_system="standard", legacy_windows=False, _environ={}
    )
    rendered = console.render_lines(_panel(title, rows, mood), pad=False)
    return ["", *(tuple(_piece(segment) for segment in line) for line in rendered)]


def _piece(segment: Segment) -> str | ColoredText:
    style = segment.style
    if style is None:
        return segment.text
    words = [*(["bold"] if style.bold else []), *([style.color.name] if style.color else [])]
    return ColoredText(segment.text, cast("Color", " ".join(words))) if words else segment.text


def _panel(title: str, rows: Sequence[Row], mood: Mood) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        # Use Text, not markup, because a path or a node's message may contain square brackets. Make the text printable
        # before the frame is drawn, because a line break would start another row.
        grid.add_row(Text(printable(label)), Text(printable(text)))
    heading = Text(f" {printable(title)} ", style=f"bold {mood}")
    return Panel(grid, title=heading, title_align="left", border_style=mood)
