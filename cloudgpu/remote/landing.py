"""Where fetched files come down: names are checked, contents go to a working folder first, then into place."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from cloudgpu.errors import StateError
from cloudgpu.remote.node_tree import Entry
from cloudgpu.remote.tree import stays_inside

_PREFIX = ".cloudgpu-part-"
_DISTRUST = "do not trust what else comes from this node"


def trusted(who: str, fields: object) -> Entry:
    """A manifest entry from a node, once it has proven harmless.

    Raises:
        StateError: It is malformed, or its name or link leads out of the directory.
    """
    match fields:
        case [str(path), int(size), int(mtime_ns), int(mode), None | str() as link] if size >= 0:
            entry = Entry(path, size, mtime_ns, mode & 0o777, link)
        case _:
            raise StateError(f"{who} sent a file list that makes no sense", hint=_DISTRUST)
    names = path.split("/")
    inside = link is None or stays_inside(os.fsencode(path), os.fsencode(link))
    if not inside or "\0" in path or any(name in ("", ".", "..") for name in names):
        raise StateError(
            f"{who} sent a file that would land outside the directory it was fetched to: {path!r}",
            hint=_DISTRUST,
        )
    return entry


class Arriving:
    """A stream of bytes, taken apart by length."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def skip_past(self, mark: bytes) -> bool:
        """Drop everything up to and including the mark; False when it does not come."""
        seen = b""
        while mark not in seen:
            piece = next(self._pieces, b"")
            if not piece:
                return False
            seen = seen[-len(mark) :] + piece
        self._rest = memoryview(seen)[seen.index(mark) + len(mark) :]
        return True

    def take(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes in pieces; fewer when the stream ends."""
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
            if not self._rest:
                return
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def pieces(self) -> Iterator[bytes]:
        """Everything that is left, as it comes."""
        yield bytes(self._rest)
        yield from self._pieces

    def rest(self) -> bytes:
        """Everything that is left."""
        return b"".join(self.pieces())


class Landing:
    """A local directory that files are put into, each in one step. Leaves nothing half-written behind."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._folder = to

    def __enter__(self) -> "Landing":
        self._to.mkdir(parents=True, exist_ok=True)
        _sweep(self._to)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=self._to))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _part(self) -> Path:
        return self._folder / "file"

    def receive_all(self, pieces: Iterable[bytes]) -> None:
        """Write a whole stream into the working folder; `place` puts it where it belongs."""
        with self._part.open("wb", buffering=0) as file:
            for piece in pieces:
                _write(file.fileno(), memoryview(piece))

    def place(self, name: str) -> None:
        """Give what was received its name, which must be a plain one."""
        self._part.replace(self._to / name)

    def receive(self, entry: Entry, arriving: Arriving) -> bool:
        """Take one file from the stream into its place; False when the stream ended first.

        Raises:
            StateError: A link or a directory is in its way.
        """
        left = entry.size
        with self._part.open("wb", buffering=0) as file:
            for piece in arriving.take(entry.size):
                left -= len(piece)
                _write(file.fileno(), piece)
        if left:
            return False
        self._part.chmod(entry.mode | 0o400)
        os.utime(self._part, ns=(entry.mtime_ns, entry.mtime_ns))
        self._settle(entry)
        return True

    def cut(self, entry: Entry, size: int) -> None:
        """Shorten a file that had shrunk on the node while it was sent."""
        os.truncate(self._to / entry.path, min(max(size, 0), entry.size))

    def link(self, entry: Entry) -> None:
        """Make a link.

        Raises:
            StateError: A link or a directory is in its way.
        """
        self._part.unlink(missing_ok=True)
        self._part.symlink_to(entry.link or ".")
        self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        """Move it to its place, through real directories only: a link among the parents could lead anywhere."""
        here = self._to
        for name in PurePosixPath(entry.path).parts[:-1]:
            here = here / name
            if here.is_symlink() or (here.exists() and not here.is_dir()):
                raise StateError(f"{here} is in the way of {entry.path}, which is to be fetched", hint="move it away")
            here.mkdir(exist_ok=True)
        try:
            self._part.replace(self._to / entry.path)
        except IsADirectoryError as err:
            raise StateError(f"{self._to / entry.path} is a directory, and a file of that name is to be fetched",
                             hint="move it away") from err  # fmt: skip


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _sweep(to: Path) -> None:
    """Remove the working folders of processes that were killed."""
    for folder in to.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(PermissionError):
            if owner.isdigit() and not _lives(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
