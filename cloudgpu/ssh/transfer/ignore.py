"""Ignore files: `.gitignore` as git reads it, and `.cloudgpuignore`, which has the same syntax and takes precedence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.ssh.transfer.glob import translate

ALWAYS_IGNORED = frozenset({b".git", b".cloudgpu-part"})
"""Names that are never sent, at any depth: git's directory, and the temporary directory of a transfer."""

GIT_NAME = b".gitignore"
OWN_NAME = b".cloudgpuignore"


@dataclass(frozen=True)
class IgnoreRule:
    """One line of an ignore file."""

    include: bool
    """True if the line starts with `!`."""
    directories_only: bool
    whole_path: bool
    """True if the pattern matches the path relative to the ignore file's directory, not just the last component."""
    pattern: re.Pattern[bytes]
    number: int = 0
    """Line number, counted from 1."""
    text: str = ""


@dataclass(frozen=True)
class IgnoreFile:
    """An ignore file. `below` is its directory relative to the root: empty, or ending with a slash."""

    below: bytes
    rules: tuple[IgnoreRule, ...]
    prefix: bytes = b""
    """Path from the file's directory down to the root, for an ignore file above the root; ends with a slash."""
    name: str = ""
    """Path of the file, as shown to the user."""

    def deciding_rule(self, path: bytes, *, directory: bool) -> IgnoreRule | None:
        """Return the last matching line; None if no line matches or the path is outside the ignore file's directory.

        Args:
            path: Path relative to the same root as `below`.
            directory: True if the path is a directory; False for a symlink to a directory.
        """
        if not path.startswith(self.below):
            return None
        inner = self.prefix + path[len(self.below) :]
        name = inner.rpartition(b"/")[2]
        for rule in reversed(self.rules):
            if rule.directories_only and not directory:
                continue
            if rule.pattern.fullmatch(inner if rule.whole_path else name):
                return rule
        return None


def parse(
    content: bytes, below: bytes = b"", *, prefix: bytes = b"", name: str = "", any_case: bool = False
) -> IgnoreFile:
    """Parse an ignore file. Comments, and patterns that can never match, are omitted.

    Args:
        content: Content of the file.
        below: Directory of the file relative to the root: empty, or ending with a slash.
        prefix: Path from the file's directory down to the root, for a file above the root; ends with a slash.
        name: Path of the file, as shown to the user.
        any_case: Whether patterns match names in any case.
    """
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    flags = re.DOTALL | (re.IGNORECASE if any_case else re.RegexFlag(0))
    rules = (_rule(line, number, flags) for number, line in enumerate(lines, start=1))
    return IgnoreFile(below, tuple(rule for rule in rules if rule is not None), prefix, name)


@dataclass(frozen=True)
class Decision:
    """The line that decides about a path, and its file."""

    file: IgnoreFile
    rule: IgnoreRule
    own: bool
    """True if the file is a `.cloudgpuignore`."""

    @property
    def ignores(self) -> bool:
        """True if the path is left out; False if the line begins with `!`."""
        return not self.rule.include

    def __str__(self) -> str:
        return f"{self.file.name}:{self.rule.number}: {self.rule.text}"


def decide(path: bytes, *, directory: bool, own: Sequence[IgnoreFile], git: Sequence[IgnoreFile]) -> Decision | None:
    """Return the line that decides about a path, or None if no line matches and the path is therefore included.

    The ignore files are ordered from the root downwards, and the deepest file with a matching line decides. Every
    `.cloudgpuignore` (`own`) takes precedence over every `.gitignore` (`git`).
    """
    for files in (own, git):
        for file in reversed(files):
            rule = file.deciding_rule(path, directory=directory)
            if rule is not None:
                return Decision(file, rule, files is own)
    return None


def _rule(line: bytes, number: int, flags: re.RegexFlag) -> IgnoreRule | None:
    text = line.decode(errors="surrogateescape").strip()
    line = _trim(line.removesuffix(b"\r"))
    if not line or line.startswith(b"#"):
        return None
    include = line.startswith(b"!")
    line = line[include:]
    directories_only = line.endswith(b"/")
    line = line[: len(line) - directories_only]
    whole_path = b"/" in line
    translated = translate(line.removeprefix(b"/"))
    if translated is None or not line:
        return None
    return IgnoreRule(include, directories_only, whole_path, re.compile(translated, flags), number, text)


def _trim(line: bytes) -> bytes:
    """Strip trailing spaces, except a space that a backslash escapes."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare + b" " if backslashes % 2 and bare != line else bare
