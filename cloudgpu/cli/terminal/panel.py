"""A panel, which is a title and labeled rows: with a frame on a terminal, as plain lines in a pipe or a file."""

from collections.abc import Sequence
from typing import Literal

from cloudgpu.cli.terminal.wrapping import wrap_paragraph

Row = tuple[str, str]
"""A label and its text; an empty label continues the row above."""
Mood = Literal["green", "red", "yellow"]


def plain_panel(title: str, rows: Sequence[Row], columns: int) -> list[str]:
    """Return the lines of the panel, wrapped and without a frame."""
    label_width = max(len(label) for label, _ in rows)
    lines = ["", title]
    for label, text in rows:
        head = f"  {label:<{label_width}}  "
        lines += wrap_paragraph(head + text, columns, " " * len(head))
    return lines
