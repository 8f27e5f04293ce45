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


@dataclass(frozen=True)
class IgnoreFile:
    """An ignore file. `below` is its directory relative to the root: empty, or ending with a slash."""

    below: bytes
    rules: tuple[IgnoreRule, ...]
    prefix: bytes = b""
    """Path from the file's directory down to the root, for an ignore file above the root; ends with a slash."""

    def verdict(self, path: bytes, *, directory: bool) -> bool | None:
        """Return whether the last matching line ignores the path.

        True means ignored, False means included by `!`, and None means that no line matches or that the path is outside
        the ignore file's directory.

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
                return not rule.include
        return None


def parse(content: bytes, below: bytes = b"", *, prefix: bytes = b"") -> IgnoreFile:
    """Parse an ignore file. Comments, and patterns that can never match, are omitted."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rules = (_rule(line) for line in lines)
    return IgnoreFile(below, tuple(rule for rule in rules if rule is not None), prefix)


def ignored(path: bytes, *, directory: bool, own: Sequence[IgnoreFile], git: Sequence[IgnoreFile]) -> bool:
    """Return True if the ignore files, ordered from the root downwards, exclude this path.

    The deepest file with a matching line decides. Every `.cloudgpuignore` (`own`) takes precedence over every
    `.gitignore` (`git`).
    """
    for files in (own, git):
        for file in reversed(files):
            verdict = file.verdict(path, directory=directory)
            if verdict is not None:
                return verdict
    return False


def _rule(line: bytes) -> IgnoreRule | None:
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
    return IgnoreRule(include, directories_only, whole_path, re.compile(translated, re.DOTALL))


def _trim(line: bytes) -> bytes:
    """Strip trailing spaces, except a space that a backslash escapes."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare + b" " if backslashes % 2 and bare != line else bare
