"""Select the files of a local directory that are sent to the nodes."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloudgpu.errors import UsageError
from cloudgpu.files import SETTINGS_BYTES, read_bytes
from cloudgpu.ssh.transfer.ignore import ALWAYS_IGNORED, GIT_NAME, OWN_NAME, IgnoreFile, ignored, parse
from cloudgpu.ssh.transfer.node_read import KINDS, relative_link, stays_inside


@dataclass(frozen=True)
class UnsendableFile:
    """A file that is not ignored but cannot be sent."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileListing:
    """The files to send, sorted and relative to the directory. Undecodable bytes in names become surrogates."""

    files: tuple[str, ...]
    bytes: int
    skipped: tuple[UnsendableFile, ...]


def files_to_send(root: Path) -> FileListing:
    """List the files of a work directory, applying ignore files.

    Symlinks to paths inside the directory are listed; absolute symlinks become relative when they are sent.
    Symlinks that point outside the directory, sockets, devices, and unreadable files and directories are listed in
    `skipped`.

    Raises:
        UsageError: `root` is not a directory.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", hint="specify an existing directory")
    top = root.resolve()
    walk = _Walk(os.fsencode(top) + b"/")
    pending = [_Directory(b"", *_above(top))]
    while pending:
        pending.extend(walk.visit(pending.pop()))
    return FileListing(tuple(sorted(walk.files)), walk.total, tuple(walk.skipped))


@dataclass(frozen=True)
class _Directory:
    """A directory and the ignore files that apply to it.

    Attributes:
        below: Path relative to the root; empty for the root, otherwise ending with a slash.
    """

    below: bytes
    own: tuple[IgnoreFile, ...]
    git: tuple[IgnoreFile, ...]

    def entered(self, entries: Sequence[os.DirEntry[bytes]]) -> "_Directory":
        """Return a copy that also applies the ignore files among the directory's entries."""
        own = [file for entry in entries if entry.name == OWN_NAME for file in _read(entry, self.below)]
        git = [file for entry in entries if entry.name == GIT_NAME for file in _read(entry, self.below)]
        return _Directory(self.below, (*self.own, *own), (*self.git, *git))

    def leaves_out(self, path: bytes, *, directory: bool) -> bool:
        return ignored(path, directory=directory, own=self.own, git=self.git)


@dataclass
class _Walk:
    root: bytes
    files: list[str] = field(default_factory=list)
    total: int = 0
    skipped: list[UnsendableFile] = field(default_factory=list)

    def visit(self, here: _Directory) -> list[_Directory]:
        """Add the files of one directory; return its subdirectories to visit."""
        try:
            with os.scandir(self.root + here.below) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as err:
            self._skip(here.below, f"cannot be read: {err.strerror}")
            return []
        here = here.entered(entries)
        deeper = []
        for entry in entries:
            path = here.below + entry.name
            directory = entry.is_dir(follow_symlinks=False)
            if entry.name in ALWAYS_IGNORED or here.leaves_out(path, directory=directory):
                continue
            if directory:
                deeper.append(_Directory(path + b"/", here.own, here.git))
            else:
                self._take(entry, path)
        return deeper

    def _take(self, entry: os.DirEntry[bytes], path: bytes) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            problem = _problem(self.root, path, status.st_mode)
        except FileNotFoundError:
            return  # deleted after the directory was listed
        if problem:
            self._skip(path, problem)
            return
        self.files.append(os.fsdecode(path))
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


def _above(root: Path) -> tuple[tuple[IgnoreFile, ...], tuple[IgnoreFile, ...]]:
    """Return the `.cloudgpuignore` and `.gitignore` files above `root`, from the top of its git repository downwards.

    If `root` is not in a repository, return no files. Each file matches paths relative to its own directory, so a
    `build/` rule in the repository's top directory also applies below `root`.
    """
    tops = [folder for folder in (root, *root.parents) if os.path.lexists(folder / ".git")]
    between = [folder for folder in root.parents if tops and folder.is_relative_to(tops[0])]
    return _parents(between, root, OWN_NAME), _parents(between, root, GIT_NAME)


def _parents(between: Sequence[Path], root: Path, name: bytes) -> tuple[IgnoreFile, ...]:
    return tuple(
        parse(_content(parent / os.fsdecode(name)), prefix=os.fsencode(root.relative_to(parent)) + b"/")
        for parent in reversed(between)
    )


def _read(entry: os.DirEntry[bytes], below: bytes) -> Iterator[IgnoreFile]:
    if entry.is_file(follow_symlinks=False):
        yield parse(_content(Path(os.fsdecode(entry.path))), below)


def _content(path: Path) -> bytes:
    """Return the content of an ignore file. As in git, a missing or unreadable file has no rules."""
    try:
        return read_bytes(path, SETTINGS_BYTES)
    except OSError:
        return b""
