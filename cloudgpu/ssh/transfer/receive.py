"""Receive downloaded files: check names, write contents to a temporary directory, then move files into place."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.ssh.transfer.node_read import FOLLOWS, SKIPPED, stays_inside
from cloudgpu.ssh.transfer.node_tree import Entry, is_folder
from cloudgpu.text import command

_PREFIX = ".cloudgpu-part-"
_LOCKED = "lock-"
_LOCK = "lock"
"""File in a temporary directory that is locked while a process uses the directory."""
_HEADER_BYTES = 8
_DISTRUST = "do not trust other data from this node"


_MOST = 1 << 62
"""Upper limit for sizes and times. No real file exceeds it, and system calls do not accept larger numbers."""
_LONGEST_NAME = 4096
_LONGEST_REASON = 4096


@dataclass(frozen=True)
class SkippedDownload:
    """A matching file on a node that was not downloaded.

    Attributes:
        path: Path relative to the source directory; empty if the entry represents several files.
        reason: Reason why the file was not downloaded.
        lost: True if contents that a pattern requests are missing, as with an unreadable file. False for a dangling
            symlink, for example.
    """

    path: str
    reason: str
    lost: bool


OnSkipped = Callable[[SkippedDownload], None]
"""Called for each file that could not be downloaded."""


def validate_entry(who: str, fields: object) -> Entry:
    """Validate a manifest entry from a node.

    Raises:
        StateError: The entry is malformed, or its path or symlink target is outside the directory.
    """
    match fields:
        case [str(path), int(size), int(mtime_ns), int(mode), None | str() as link] if _plausible(size, mtime_ns):
            entry = Entry(path, size, mtime_ns, mode & 0o777, link)
        case _:
            raise _malformed(who)
    folder = is_folder(entry) and (size, mtime_ns, mode, link) == (0, 0, 0, None)
    names = (path[:-1] if folder else path).split("/") if _writable(path) else [""]
    plain = not any(name in ("", ".", "..") for name in names)
    if not plain or not (link is None or _inside(path, link)):
        raise StateError(
            f"{who} sent a path or symlink that leads outside the download directory: {path!r}",
            hint=_DISTRUST,
        )
    return entry


def validate_skipped(who: str, fields: object) -> SkippedDownload:
    """Validate a node's report of a file that it cannot send.

    Raises:
        StateError: The report is malformed.
    """
    match fields:
        case [str(path), str(reason), bool(lost)]:
            return SkippedDownload(path[:_LONGEST_NAME], reason[:_LONGEST_REASON], lost)
        case _:
            raise _malformed(who)


def _inside(path: str, link: str) -> bool:
    return _writable(link) and stays_inside(os.fsencode(path), os.fsencode(link))


def _plausible(size: int, mtime_ns: int) -> bool:
    return 0 <= size < _MOST and -_MOST < mtime_ns < _MOST


def _writable(name: str) -> bool:
    """Return True if the text can be encoded as a file name on this machine and contains no null byte."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _malformed(who: str) -> StateError:
    return StateError(f"{who} sent a malformed file list", hint=_DISTRUST)


class ReceiveStream:
    """A byte stream that is read in chunks of known length."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def skip_past(self, mark: bytes, *, within: int) -> bool:
        """Skip everything up to and including the marker. Return False if the first `within` bytes lack the marker."""
        seen = b""
        dropped = 0
        while mark not in seen:
            piece = next(self._pieces, b"")
            dropped += len(piece)
            if not piece or dropped > within + len(mark):
                self._rest = memoryview(piece)
                return False
            seen = seen[-len(mark) :] + piece
        self._rest = memoryview(seen)[seen.index(mark) + len(mark) :]
        return True

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes in chunks; fewer if the stream ends."""
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
            if not self._rest:
                return
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def message(self, limit: int) -> bytes | None:
        """Read one message: its length in eight bytes, then its text. Return None if it is truncated or too long."""
        header = b"".join(self.take(_HEADER_BYTES))
        size = int.from_bytes(header, "big")
        if len(header) < _HEADER_BYTES or size > limit:
            return None
        text = b"".join(self.take(size))
        return text if len(text) == size else None

    def ended(self) -> bool:
        """Return True if the stream has no more data. Wait for at most one more chunk."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        return not self._rest

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest of the stream as it arrives."""
        yield bytes(self._rest)
        yield from self._pieces

    def rest(self) -> bytes:
        """Return the rest of the stream."""
        return b"".join(self.pieces())


class DownloadDirectory:
    """A local directory into which received files are moved atomically, so that no partial files remain."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._folder = to
        self._arrived: set[str] = set()

    def __enter__(self) -> "DownloadDirectory":
        self._to.mkdir(parents=True, exist_ok=True)
        _sweep(self._to)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_LOCKED}", dir=self._to))
        self._lock = files.open_for_appending(self._folder / _LOCK)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    @property
    def _part(self) -> Path:
        return self._folder / "file"

    def receive_all(self, pieces: Iterable[bytes]) -> None:
        """Write a whole stream to the temporary directory; `place` then moves the file to its destination."""
        with self._part.open("wb", buffering=0) as file:
            for piece in pieces:
                _write(file.fileno(), memoryview(piece))

    def place(self, name: str) -> None:
        """Move the received content to `name`, a file name without directories."""
        self._part.replace(self._to / name)

    def receive(self, entry: Entry, arriving: ReceiveStream) -> bool:
        """Receive one file and move it into place. Return False if the stream ends early or is malformed.

        For a file that the node could not open, the stream contains only a marker byte, and the result is True.

        Raises:
            StateError: A local symlink, file or directory blocks the path of the file.
        """
        announced = b"".join(arriving.take(1))
        if announced != FOLLOWS:
            return announced == SKIPPED
        left = entry.size
        with self._part.open("wb", buffering=0) as file:
            for piece in arriving.take(entry.size):
                left -= len(piece)
                _write(file.fileno(), piece)
        if left:
            return False
        self._part.chmod(entry.mode | 0o400)
        os.utime(self._part, ns=(entry.mtime_ns, entry.mtime_ns))
        self._move_into_place(entry)
        self._arrived.add(entry.path)
        return True

    def cut(self, entry: Entry, size: int) -> None:
        """Truncate a file that became shorter on the node while it was being sent."""
        os.truncate(self._to / entry.path, min(max(size, 0), entry.size))

    def drop(self, entry: Entry) -> None:
        """Remove a file that the node could not read completely. If nothing was received, keep the older local copy."""
        if entry.path not in self._arrived:
            return
        with contextlib.suppress(FileNotFoundError):
            (self._to / entry.path).unlink()

    def link(self, entry: Entry) -> None:
        """Create a symlink.

        Raises:
            StateError: A local symlink, file or directory blocks the path of the symlink.
        """
        self._part.unlink(missing_ok=True)
        self._part.symlink_to(entry.link or ".")
        self._move_into_place(entry)

    def make_folder(self, entry: Entry) -> None:
        """Create an empty directory.

        Raises:
            StateError: A local symlink or file blocks its path.
        """
        self._make_parents(entry)

    def _move_into_place(self, entry: Entry) -> None:
        """Move the received file or symlink into place."""
        self._make_parents(entry)
        try:
            self._part.replace(self._to / entry.path)
        except IsADirectoryError as err:
            raise StateError(f"cannot download {entry.path}: {self._to / entry.path} is a directory",
                             hint="move or delete the directory") from err  # fmt: skip

    def _make_parents(self, entry: Entry) -> None:
        """Create the directories above an entry. Reject symlinks among them, because they may lead anywhere."""
        here = self._to
        for name in entry.path.split("/")[:-1]:
            here = here / name
            if here.is_symlink() or (here.exists() and not here.is_dir()):
                raise StateError(
                    f"cannot download {entry.path}: {here} is in the way", hint=f"move or delete {command(str(here))}"
                )
            here.mkdir(exist_ok=True)


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _sweep(to: Path) -> None:
    """Remove the temporary directories left by killed processes of any machine.

    A process holds a lock in its directory, because process IDs of other machines and containers mean nothing here.
    Older versions only recorded the ID.
    """
    for folder in to.glob(f"{_PREFIX}*"):
        name = folder.name.removeprefix(_PREFIX)
        owner = name.partition("-")[0]
        with contextlib.suppress(OSError):
            if name.startswith(_LOCKED):
                _remove_unlocked(folder)
            elif re.fullmatch("[0-9]{1,9}", owner) and not _is_running(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(folder: Path) -> None:
    lock = files.open_descriptor(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
