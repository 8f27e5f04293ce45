"""Format plain text as aligned columns and wrapped paragraphs."""

import textwrap
from collections.abc import Collection, Sequence


def align_columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "") -> list[str]:
    """Return the rows as aligned lines with two spaces between columns. `right` contains the right-aligned columns."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def wrap_paragraph(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a paragraph to `width` with indented continuation lines, keeping paths and commands on one line."""
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines or [""]
