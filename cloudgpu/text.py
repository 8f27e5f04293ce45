"""Make untrusted text safe to print, to paste into a shell and to pass to OpenSSH; format counts, sizes and times.

Untrusted text is all text that cloudgpu did not write: tags, files, log lines, names, and messages from AWS, nodes and
registries.
"""

import re
import shlex
from typing import Final

from cloudgpu.errors import StateError

_REPLACEMENT = "\ufffd"
_STEP_BYTES = 1024
_MINUTE_S = 60
SHELL_WORD = r"(?:'[^']*(?:'\"'\"'[^']*)*'|[^\s']\S*)"
"""Pattern of one word as quoted by `command`. An unquoted word extends to the next whitespace."""

_BACKSLASH: Final = re.compile(r"""\\(?=[\\"']|$)""")
"""A backslash that OpenSSH would drop between double quotes."""
_NEVER_IN_OPENSSH: Final = ("\n", "\r", "\0", "${")
"""What no option of OpenSSH can contain: it ends the line, or names an environment variable and cannot be escaped."""


def printable(text: str) -> str:
    """Replace every character that could control a terminal.

    `str.isprintable` rejects C0 and C1 controls, bidirectional and other format controls, line and paragraph
    separators, and lone surrogates. Tabs are kept.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _REPLACEMENT for char in text)


def command(*words: str, **environment: str) -> str:
    """Return a command line for a POSIX shell, preceded by `environment` as variable assignments.

    Every word that a shell would interpret is quoted, so a hint can be pasted no matter what a tag or a file name
    contains.
    """
    assignments = (f"{name}={shlex.quote(printable(value))}" for name, value in environment.items())
    return " ".join([*assignments, *(shlex.quote(printable(word)) for word in words)])


def openssh_path(path: str) -> str:
    """Return a path as the value of an OpenSSH option, in a file or after `-o`.

    OpenSSH splits such a value at spaces, reads quotes, backslashes and comments, and expands `%`.
    """
    found = [text for text in _NEVER_IN_OPENSSH if text in path]
    if found:
        raise StateError(
            f"OpenSSH cannot use the path {path!r}, because it contains {found[0]!r}",
            hint="move the file, or set CLOUDGPU_HOME to a directory whose path does not contain this text",
        )
    escaped = _BACKSLASH.sub(r"\\\\", path).replace('"', '\\"').replace("%", "%%")
    plain = re.fullmatch(r"[A-Za-z0-9/._@%+=:,-]+", escaped)
    return escaped if plain else f'"{escaped}"'


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 file`, `2 files`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def index_range_text(count: int, noun: str = "node", first: int = 0) -> str:
    """Describe which indices exist: `its only node is 0`, or `its nodes are 0 to 3`."""
    return f"its only {noun} is {first}" if count == 1 else f"its {noun}s are {first} to {first + count - 1}"


def size_text(count: int) -> str:
    """Format a number of bytes for display, for example `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < _STEP_BYTES:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP_BYTES
    return f"{size:.1f} GiB"


def duration_text(seconds: float) -> str:
    """Format a duration in the units of a wait: `45 s`, `12 min`, `12 min 30 s`."""
    minutes, rest_s = divmod(int(seconds), _MINUTE_S)
    if not minutes:
        return f"{rest_s} s"
    return f"{minutes} min{f' {rest_s} s' if rest_s else ''}"
