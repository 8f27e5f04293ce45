"""Make foreign text safe to show on a terminal and to paste into a shell, and spell sizes for people.

Foreign text is everything that cloudgpu did not write itself: tags, files, log lines, names, messages of AWS, of nodes
and of registries.
"""

import shlex

_REPLACEMENT = "\ufffd"
_STEP_BYTES = 1024
SHELL_WORD = r"(?:'[^']*(?:'\"'\"'[^']*)*'|[^\s']\S*)"
"""Pattern of one word as `command` writes it; of an unquoted one up to the next space, with what follows it there."""


def printable(text: str) -> str:
    """Replace every character that could steer a terminal.

    `str.isprintable` rejects C0 and C1 controls, bidirectional and other format controls, line and paragraph
    separators and lone surrogates. Tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _REPLACEMENT for char in text)


def command(*words: str, **environment: str) -> str:
    """Return a command line for a POSIX shell, with `environment` as assignments in front.

    Every word is quoted where a shell would read more into it, so a hint can be pasted whatever a tag or a file name
    holds.
    """
    assignments = (f"{name}={shlex.quote(printable(value))}" for name, value in environment.items())
    return " ".join([*assignments, *(shlex.quote(printable(word)) for word in words)])


def size_text(count: int) -> str:
    """`1.5 MiB`, for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < _STEP_BYTES:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP_BYTES
    return f"{size:.1f} GiB"
