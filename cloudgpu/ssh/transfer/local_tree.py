"""Select the files of a local directory that are sent to the nodes."""

import codecs
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudgpu.errors import UsageError
from cloudgpu.files import SAVE_AS_UTF8, SETTINGS_BYTES, read_bytes
from cloudgpu.ssh.transfer.git_files import (
    ALWAYS_IGNORED,
    GIT_NAME,
    OWN_NAME,
    Decision,
    GitRepository,
    IgnoreFile,
    UnreadableIndexError,
    decide,
    parse_rules,
)
from cloudgpu.ssh.transfer.node_read import KINDS, relative_link, stays_inside

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class UnsendableFile:
    """A file that is not ignored but cannot be sent."""

    path: str
    reason: str


@dataclass(frozen=True)
class IgnoredPath:
    """A file, or a directory with everything in it, that a line of an ignore file leaves out.

    Attributes:
        path: Path relative to the root. The path of a directory ends with a slash.
        rule: The line, as `FILE:NUMBER: TEXT`.
    """

    path: str
    rule: str


@dataclass(frozen=True)
class FileListing:
    """The files to send, sorted and relative to the directory. Undecodable bytes in names become surrogates.

    Attributes:
        folders: The directories without any of these files, in order. Each ends with a slash.
        ignored: What ignore files leave out.
    """

    files: tuple[str, ...]
    bytes: int
    skipped: tuple[UnsendableFile, ...]
    folders: tuple[str, ...] = ()
    ignored: tuple[IgnoredPath, ...] = ()


def files_to_send(root: Path) -> FileListing:
    """List the files of a work directory, applying ignore files.

    As in git, files that a repository tracks are listed although a `.gitignore` matches them. A `.cloudgpuignore` also
    leaves out tracked files.

    Symlinks to paths inside the directory are listed; absolute symlinks become relative when they are sent.
    Symlinks that point outside the directory, sockets, devices, and unreadable files and directories are listed in
    `skipped`.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", hint="specify an existing directory")
    top = root.resolve()
    walk = _Walk(os.fsencode(top) + b"/")
    pending = [_root(top)]
    while pending:
        pending.extend(walk.visit(pending.pop()))
    folders = sorted(os.fsdecode(folder) for folder in walk.folders - _above_all([*walk.taken, *walk.folders]))
    return FileListing(
        tuple(sorted(map(os.fsdecode, walk.taken))),
        walk.total,
        tuple(walk.skipped),
        tuple(folders),
        tuple(walk.ignored),
    )


def _above_all(paths: Iterable[bytes]) -> set[bytes]:
    """Return the directories above these paths; each ends with a slash."""
    above: set[bytes] = set()
    for path in paths:
        folder = path.rstrip(b"/").rpartition(b"/")[0]
        while folder and folder + b"/" not in above:
            above.add(folder + b"/")
            folder = folder.rpartition(b"/")[0]
    return above


@dataclass(frozen=True)
class _Directory:
    """A directory and the ignore files that apply to it.

    Attributes:
        below: Path relative to the root; empty for the root, otherwise ending with a slash.
        repository: The repository that contains the directory; None if there is none.
        prefix: Path from the top of the repository down to the root, if the repository is not below the root.
        nested: Path of the repository's top relative to the root, if the repository is below the root.
        ignored_by: The line of a `.gitignore` that matches the directory, of which only tracked files are sent.
    """

    below: bytes
    own: tuple[IgnoreFile, ...]
    git: tuple[IgnoreFile, ...]
    repository: GitRepository | None = None
    prefix: bytes = b""
    nested: bytes = b""
    ignored_by: Decision | None = None

    def entered(self, root: bytes, entries: Sequence[os.DirEntry[bytes]]) -> "_Directory":
        """Return a copy that also applies the ignore files and the repository among the directory's entries."""
        here = self
        names = {entry.name for entry in entries}
        if b".git" in names and self.below:
            repository = GitRepository(Path(os.fsdecode(root + self.below)))
            here = replace(self, repository=repository, prefix=b"", nested=self.below)
        any_case = here.repository is not None and here.repository.ignores_case
        own = [file for entry in entries if entry.name == OWN_NAME for file in _read(entry, self.below)]
        git = [
            file for entry in entries if entry.name == GIT_NAME for file in _read(entry, self.below, any_case=any_case)
        ]
        return replace(here, own=(*self.own, *own), git=(*self.git, *git))

    def decide(self, path: bytes, *, directory: bool) -> Decision | None:
        """Return the line that leaves out a path; None if the path is sent or, for a directory, visited."""
        decision = decide(path, directory=directory, own=self.own, git=self.git)
        if decision is not None and decision.own and decision.ignores:
            return decision
        decision = decision if decision is not None and decision.ignores else self.ignored_by
        return None if decision is None or self._tracks(path, directory=directory) else decision

    def subdirectory(self, path: bytes) -> "_Directory":
        decision = decide(path, directory=True, own=self.own, git=self.git)
        ignored = decision if decision is not None and decision.ignores else self.ignored_by
        return replace(self, below=path + b"/", ignored_by=ignored)

    def _tracks(self, path: bytes, *, directory: bool) -> bool:
        if self.repository is None:
            return False
        inner = self.prefix + path.removeprefix(self.nested)
        return (inner + b"/" if directory else inner) in self.repository.tracked


@dataclass
class _Walk:
    root: bytes
    taken: set[bytes] = field(default_factory=set)
    folders: set[bytes] = field(default_factory=set)
    total: int = 0
    skipped: list[UnsendableFile] = field(default_factory=list)
    ignored: list[IgnoredPath] = field(default_factory=list)

    def visit(self, here: _Directory) -> list[_Directory]:
        """Add the files of one directory; return its subdirectories to visit."""
        try:
            with os.scandir(self.root + here.below) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as err:
            self._skip(here.below, f"cannot be read: {err.strerror}")
            return []
        here = here.entered(self.root, entries)
        deeper = []
        for entry in entries:
            path = here.below + entry.name
            directory = entry.is_dir(follow_symlinks=False)
            if entry.name in ALWAYS_IGNORED or self._leaves_out(here, path, directory=directory):
                continue
            if directory:
                deeper.append(here.subdirectory(path))
                if deeper[-1].ignored_by is None:
                    self.folders.add(path + b"/")
            else:
                self._take(entry, path)
        return deeper

    def _leaves_out(self, here: _Directory, path: bytes, *, directory: bool) -> bool:
        try:
            decision = here.decide(path, directory=directory)
        except UnreadableIndexError as err:
            decision = decide(path, directory=directory, own=here.own, git=here.git)
            self._skip(path, f"matched by {decision}; it is unknown whether it is tracked: {err}")
            return True
        if decision is not None:
            shown = os.fsdecode(path) + ("/" if directory else "")
            self.ignored.append(IgnoredPath(shown, str(decision)))
        return decision is not None

    def _take(self, entry: os.DirEntry[bytes], path: bytes) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            problem = _problem(self.root, path, status.st_mode)
        except FileNotFoundError:
            return  # deleted after the directory was listed
        if problem:
            self._skip(path, problem)
            return
        self.taken.add(path)
        if stat.S_ISREG(status.st_mode):
            self.total += status.st_size

    def _skip(self, path: bytes, reason: str) -> None:
        self.skipped.append(UnsendableFile(os.fsdecode(path) or ".", reason))


def _problem(root: bytes, path: bytes, mode: int) -> str:
    """Return the reason why an entry cannot be sent; empty if it can be sent."""
    full = root + path
    if stat.S_ISLNK(mode):
        if stays_inside(path, os.readlink(full)):  # noqa: PTH115  # a name that is not UTF-8 must stay bytes
            return ""
        return relative_link(root, path)[1]
    if not stat.S_ISREG(mode):
        return KINDS.get(stat.S_IFMT(mode), "neither a file nor a symlink")
    return "" if os.access(full, os.R_OK) else "cannot be read: permission denied"


def _root(root: Path) -> _Directory:
    """Return the root with the ignore files above it, from the top of its git repository downwards.

    If `root` is not in a repository, there are none. Each file matches paths relative to its own directory, so a
    `build/` rule in the repository's top directory also applies below `root`.
    """
    tops = [folder for folder in (root, *root.parents) if os.path.lexists(folder / ".git")]
    if not tops:
        return _Directory(b"", (), ())
    repository = GitRepository(tops[0])
    prefix = _prefix(root, tops[0])
    any_case = repository.ignores_case
    shared = tuple(
        parse_rules(_content(file), prefix=prefix, name=str(file), any_case=any_case)
        for file in repository.exclude_files
    )
    between = [folder for folder in root.parents if folder.is_relative_to(tops[0])]
    own, git = _parents(between, root, OWN_NAME), _parents(between, root, GIT_NAME, any_case=any_case)
    return _Directory(b"", own, (*shared, *git), repository, prefix)


def _prefix(root: Path, folder: Path) -> bytes:
    """Return the path from a folder down to the root: empty, or ending with a slash."""
    return b"" if root == folder else os.fsencode(root.relative_to(folder)) + b"/"


def _parents(between: Sequence[Path], root: Path, name: bytes, *, any_case: bool = False) -> tuple[IgnoreFile, ...]:
    files = [(parent / os.fsdecode(name), _prefix(root, parent)) for parent in reversed(between)]
    return tuple(
        parse_rules(_content(file), prefix=prefix, name=str(file), any_case=any_case) for file, prefix in files
    )


def _read(entry: os.DirEntry[bytes], below: bytes, *, any_case: bool = False) -> Iterator[IgnoreFile]:
    if entry.is_file(follow_symlinks=False):
        name = os.fsdecode(below + entry.name)
        yield parse_rules(_content(Path(os.fsdecode(entry.path))), below, name=name, any_case=any_case)


def _content(path: Path) -> bytes:
    """Return the content of an ignore file. As in git, a missing or unreadable file has no rules."""
    try:
        content = read_bytes(path, SETTINGS_BYTES)
    except OSError:
        return b""
    if content.startswith(_UTF16) or b"\0" in content[:2]:
        raise UsageError(f"{path} is UTF-16 text, not UTF-8", hint=SAVE_AS_UTF8)
    return content
