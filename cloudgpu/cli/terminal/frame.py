"""Draw panels with a frame. This module imports rich, so it is imported only when a panel is drawn on a terminal."""

from collections.abc import Sequence
from typing import cast

from rich.console import Console
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cloudgpu.cli.terminal.output import Color, ColoredText, Line
from cloudgpu.cli.terminal.panel import Mood, Row
from cloudgpu.text import printable

_WIDEST = 110


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
