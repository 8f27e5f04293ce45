"""Remote commands. The type of each part determines its quoting and masking, so that secrets never reach a log."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SAFE: Final = re.compile(r"[A-Za-z0-9 @%+=:,./_-]+")
"""Text that every login shell reads unchanged between single quotes."""
_UNSAFE_BYTE: Final = re.compile(rb"[^A-Za-z0-9 @%+=:,./_|&;<>(){}\[\]*?#~$\"`-]")
"""Bytes that a shell changes between single quotes: csh `!` and line breaks, fish and some settings of csh `\\`."""
_WORD: Final = re.compile(r"(?:\\0[0-7]{3}|[^\\]){1,1500}")
"""A word on the wire, which never ends inside an escape. csh rejects words of more than about 10,000 characters."""
_LONGEST_PLAIN: Final = 4000
_BUILTINS: Final = frozenset(
    (
        *(".", ":", "alias", "bg", "break", "cd", "command", "continue", "eval", "exec", "exit", "export", "fg"),
        *("getopts", "hash", "jobs", "read", "readonly", "return", "set", "shift", "times", "trap", "type", "ulimit"),
        *("umask", "unalias", "unset", "wait"),
    )
)
"""Commands that a POSIX shell only has itself."""


@dataclass(frozen=True)
class Raw:
    """Shell text that is not quoted: operators, redirections, `$HOME`."""

    text: str


@dataclass(frozen=True)
class Secret:
    """A value that is quoted when sent and masked when shown."""

    value: str

    def __repr__(self) -> str:
        return "Secret('***')"


class RemoteCommand:
    """A remote command line. Strings are quoted, `Raw` is not, `Secret` is quoted when sent and masked elsewhere."""

    def __init__(self, *parts: str | Raw | Secret) -> None:
        self.parts = parts

    def text(self) -> str:
        """Return the command in the syntax of a POSIX shell."""
        return " ".join(_quoted(part) for part in self.parts)

    def wire(self) -> str:
        """Return the text that is sent to the login shell, which may be csh, tcsh or fish: it only starts `sh`."""
        # Replaced by the program, `sh` need not wait for it, and a signal to this process reaches the program.
        return _portable(f"exec {self.text()}" if self._is_program() else self.text())

    def _is_program(self) -> bool:
        """Return True if the command is a single program, and neither a built-in of the shell nor an assignment."""
        first = self.parts[0] if self.parts else ""
        single = not any(isinstance(part, Raw) for part in self.parts)
        return single and isinstance(first, str) and "=" not in first and first not in _BUILTINS

    def shown(self) -> str:
        """Return the command with secrets masked, for logs."""
        return " ".join("***" if isinstance(part, Secret) else _quoted(part) for part in self.parts)

    __str__ = shown

    def __repr__(self) -> str:
        return f"RemoteCommand({self.shown()!r})"


def _quoted(part: str | Raw | Secret) -> str:
    if isinstance(part, Raw):
        return part.text
    return shlex.quote(part.value if isinstance(part, Secret) else part)


def portable_line(argv: Sequence[str]) -> str:
    """Return a command line that every login shell of this machine or of a node reads unchanged."""
    line = shlex.join(argv)
    return _portable(f"exec {line}") if set(line) & set("!\\\n") else line


def _portable(text: str) -> str:
    """Return a command line that runs a text with `sh` and that every login shell reads unchanged."""
    if _SAFE.fullmatch(text) and len(text) <= _LONGEST_PLAIN:
        return f"sh -c '{text}'"
    words = " ".join(f"'{word}'" for word in _encoded_words(text))
    return f"""sh -c 'eval "$(printf %b "$@")"' sh {words}"""


def _encoded_words(text: str) -> list[str]:
    """Return words from which `printf %b` makes the text again. Every login shell reads them unchanged."""
    raw = text.encode("utf-8", "surrogateescape")
    encoded = _UNSAFE_BYTE.sub(lambda match: b"\\0%03o" % ord(match[0]), raw).decode("ascii")
    return _WORD.findall(encoded)
