"""Read a git repository's tracked files, settings and ignore files, and `.cloudgpuignore`, without running git.

git runs programs that a repository's settings name, and a repository may come from a person whom the user does not
trust. It may also not be installed.
"""

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cloudgpu.files import MANIFEST_BYTES, SETTINGS_BYTES, read_bytes
from cloudgpu.ssh.transfer.glob import translate

ALWAYS_IGNORED = frozenset({b".git", b".cloudgpu-part"})
"""Names that are never sent, at any depth: git's directory, and the temporary directory of a transfer."""

GIT_NAME = b".gitignore"
OWN_NAME = b".cloudgpuignore"
_POINTER: Final = b"gitdir: "
_SIGNATURE: Final = b"DIRC"
_VERSIONS: Final = (2, 3, 4)
_COMPRESSED: Final = 4
"""Index version in which a name continues the previous name."""
_STAT_BYTES: Final = 40
_MODE: Final = struct.Struct(">24xL")
"""The mode of an index entry, after two times, a device and an inode."""
_EXTENDED: Final = 0x4000
_HASH_BYTES: Final = {"sha256": 32}
_SPLIT: Final = b"link"
_SECTION: Final = re.compile(r"\s*\[\s*(?P<section>[A-Za-z0-9.-]+)\s*\]")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_COMMENT: Final = re.compile(r"[#;]")
_TRUE: Final = frozenset({"", "true", "yes", "on", "1"})


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


def parse_rules(
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


_GITLINK, _TREE, _TYPE = 0o160000, 0o040000, 0o170000


class UnreadableIndexError(Exception):
    """The list of tracked files cannot be read. The message is the reason."""


@dataclass(frozen=True)
class GitRepository:
    """A repository whose working tree is at `top`."""

    top: Path

    @cached_property
    def directory(self) -> Path:
        """The repository's directory: `.git`, or the directory that a `.git` file names in a worktree or submodule."""
        pointer = self.top / ".git"
        content = b"" if pointer.is_dir() else _content(pointer)
        if not content.startswith(_POINTER):
            return pointer
        return self.top / os.fsdecode(content.removeprefix(_POINTER).rstrip(b"\r\n"))

    @cached_property
    def common_directory(self) -> Path:
        """The directory that the repository shares with its other worktrees."""
        named = os.fsdecode(_content(self.directory / "commondir").rstrip(b"\r\n"))
        return self.directory / named if named else self.directory

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """The settings of the user and the repository, such as `core.ignorecase`. Included files are not read."""
        xdg = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111 - never raises
        users = [xdg / "git" / "config", Path(os.path.expanduser("~/.gitconfig"))]  # noqa: PTH111
        files = [Path("/etc/gitconfig"), *users, self.common_directory / "config"]
        found: dict[str, str] = {}
        for file in files:
            found |= parse_settings(_content(file).decode(errors="replace"))
        return found

    @property
    def ignores_case(self) -> bool:
        """True if ignore patterns match names in any case, as on macOS."""
        return self.settings.get("core.ignorecase", "false").lower() in _TRUE

    @property
    def exclude_files(self) -> tuple[Path, ...]:
        """The ignore files outside the working tree, from the lowest precedence to the highest."""
        xdg = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        users = os.path.expanduser(self.settings.get("core.excludesfile") or f"{xdg}/git/ignore")  # noqa: PTH111
        return (self.top / users, self.common_directory / "info" / "exclude")

    @cached_property
    def tracked(self) -> frozenset[bytes]:
        """The tracked files and the directories that contain them, relative to `top`. Directories end with a slash."""
        try:
            content = read_bytes(self.directory / "index", MANIFEST_BYTES)
        except FileNotFoundError:
            return frozenset()  # nothing has been added yet
        except OSError as err:
            raise UnreadableIndexError(str(err.strerror)) from err
        return tracked_names(content, _HASH_BYTES.get(self.settings.get("extensions.objectformat", ""), 20))


def tracked_names(index: bytes, hash_bytes: int) -> frozenset[bytes]:
    """Return the files in an index, and the directories that contain them, which end with a slash."""
    try:
        return frozenset(_with_folders(_entries(index, hash_bytes)))
    except (struct.error, IndexError, ValueError) as err:
        raise UnreadableIndexError("its index is damaged") from err


def parse_settings(text: str) -> dict[str, str]:
    """Parse a git configuration file. Names are in lower case; included files and subsections are left out."""
    return dict(_variables(text))


def _entries(content: bytes, hash_bytes: int) -> Iterator[bytes]:
    """Yield the names in an index. The name of a submodule ends with a slash."""
    signature, version, count = struct.unpack_from(">4sLL", content)
    if signature != _SIGNATURE or version not in _VERSIONS:
        raise UnreadableIndexError("its index has an unknown format")
    at, name = 12, b""
    for _ in range(count):
        (mode,) = _MODE.unpack_from(content, at)
        (flags,) = struct.unpack_from(">H", content, at + _STAT_BYTES + hash_bytes)
        start = at + _STAT_BYTES + hash_bytes + (4 if flags & _EXTENDED else 2)
        kept = 0
        if version == _COMPRESSED:
            removed, start = _varint(content, start)
            if removed > len(name):
                raise ValueError
            kept = len(name) - removed
        end = content.index(b"\0", start)
        name = name[:kept] + content[start:end]
        at = end + 1 if version == _COMPRESSED else at + ((end - at) // 8 + 1) * 8
        if mode & _TYPE != _TREE:  # a directory that a sparse index does not expand is not in the working tree
            yield name + b"/" if mode & _TYPE == _GITLINK else name
    if content[at : at + 4] == _SPLIT:
        raise UnreadableIndexError("its index is split; `git update-index --no-split-index` joins it")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a length, and the offset after it. A length that no name has is not computed completely."""
    value = content[at] & 0x7F
    while content[at] & 0x80 and value <= len(content):
        at += 1
        value = ((value + 1) << 7) + (content[at] & 0x7F)
    return value, at + 1


def _with_folders(names: Iterator[bytes]) -> Iterator[bytes]:
    known: set[bytes] = set()
    for name in names:
        yield name
        folder = name.rstrip(b"/").rpartition(b"/")[0]
        while folder and folder not in known:
            known.add(folder)
            yield folder + b"/"
            folder = folder.rpartition(b"/")[0]


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables in a git configuration file, with names in lower case."""
    section = ""
    for line in text.splitlines():
        rest = line
        if line.lstrip().startswith("["):
            heading = _SECTION.match(line)
            section = heading["section"].lower() if heading else ""
            rest = line[heading.end() :] if heading else ""
        name, _, value = (part.strip() for part in _COMMENT.split(rest, maxsplit=1)[0].partition("="))
        if section and _NAME.fullmatch(name):
            yield f"{section}.{name.lower()}", value.strip('"')


def _content(path: Path) -> bytes:
    """Return the content of a small file, or nothing if it cannot be read."""
    try:
        return read_bytes(path, SETTINGS_BYTES)
    except OSError:
        return b""
