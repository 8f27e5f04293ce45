"""Measure text in terminal columns, and wrap it at spaces. A word is never broken."""

import re
from collections.abc import Iterable, Sequence

_COMMAND = re.compile(r"(?<=: )cloudgpu(?: [^\s;()`]+)+|(?<=`)cloudgpu(?: [^\s`]+)+")
"""A command in a sentence. It ends at the end of the line or of the clause."""
_WORD = re.compile(r" *[^ ]+")
_GLUE = "\0"
"""Replaces the spaces that must not become line breaks. `printable` leaves no such character in output."""


def display_width(text: str) -> int:
    """Return the number of terminal columns that printable text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most output is ASCII, and rich takes long to import

    return cell_len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text padded with spaces to `width` columns, aligned left or `right`."""
    spaces = " " * (width - display_width(text))
    return spaces + text if right else text + spaces


def wrap_words(words: Iterable[str], width: int) -> list[str]:
    """Return lines of words joined by spaces, each up to `width` columns. A longer word gets a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and display_width(lines[-1]) + 1 + display_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def wrap_paragraph(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a paragraph to `width` with indented continuation lines, keeping paths and commands on one line."""
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), text)
    # Every word keeps the spaces before it, because they align the word with other lines.
    first, *more = _WORD.findall(glued) or [""]
    lines = [first]
    for word in more:
        if display_width(lines[-1]) + display_width(word) <= width:
            lines[-1] += word
        else:
            lines.append(indent + word.lstrip(" "))
    return [line.replace(_GLUE, " ") for line in lines]


def wrap_lines(lines: Sequence[str], width: int | None) -> list[str]:
    """Wrap each line to the terminal's `width`, with continuation lines indented by two more columns."""
    if width is None:
        return list(lines)
    return [part for line in lines for part in wrap_paragraph(line, width, f"{_leading_spaces(line)}  ")]


def _leading_spaces(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
