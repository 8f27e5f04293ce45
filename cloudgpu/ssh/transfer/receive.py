"""Receive downloaded files: check names, write contents to a temporary directory, then move files into place."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.ssh.transfer.node_read import FOLLOWS, PARTS_FOLLOW, SKIPPED
from cloudgpu.ssh.transfer.node_tree import EXTENT, Entry

_PREFIX = ".cloudgpu-part-"
_LOCKED = "lock-"
_PART = "file"
_LOCK = "lock"
"""File in a temporary directory that is locked while a process uses the directory."""
_HEADER_BYTES = 8
_MAKE_WAY = "move or delete it"


_RESERVE_BYTES = 64 << 20
"""Disk space that downloads leave free for records and other programs; a tenth of the free space if that is less."""
_CHECK_EVERY_BYTES = 16 << 20
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNSTORABLE = frozenset({errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
"""Errors that concern one file: its size or its name is not possible on the local file system."""


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
        self._unchecked = self._reserve = 0
        self.unstorable: dict[str, str] = {}
        """Paths of received files that the local file system cannot store, with the reasons."""

    def __enter__(self) -> "DownloadDirectory":
        self._to.mkdir(parents=True, exist_ok=True)
        _sweep(self._to)
        self._reserve = reserve_bytes(self._to)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_LOCKED}", dir=self._to))
        self._lock = files.open_for_appending(self._folder / _LOCK)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    @property
    def _part(self) -> Path:
        return self._folder / _PART

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
        """
        announced = b"".join(arriving.take(1))
        if announced not in (FOLLOWS, PARTS_FOLLOW):
            return announced == SKIPPED
        complete = self._receive_contents(entry, arriving, in_parts=announced == PARTS_FOLLOW)
        if not complete or entry.path in self.unstorable:
            return complete
        self._part.chmod(entry.mode | 0o400)
        os.utime(self._part, ns=(entry.mtime_ns, entry.mtime_ns))
        with self._storing(entry):
            self._move_into_place(entry)
            self._arrived.add(entry.path)
        return True

    def _receive_contents(self, entry: Entry, arriving: ReceiveStream, *, in_parts: bool) -> bool:
        """Write the contents to the temporary file. Return False if the stream ends early or is malformed."""
        with self._part.open("wb", buffering=0) as file:
            parts = _parts(arriving, entry.size) if in_parts else iter([(0, entry.size)])
            for offset, size in parts:
                if offset < 0:
                    return False
                with self._storing(entry):
                    os.lseek(file.fileno(), offset, os.SEEK_SET)
                left = size
                for piece in arriving.take(size):
                    left -= len(piece)
                    self._write(entry, file.fileno(), piece)
                if left:
                    return False
            with self._storing(entry):
                os.ftruncate(file.fileno(), entry.size)
        return True

    def _write(self, entry: Entry, descriptor: int, piece: memoryview) -> None:
        """Write a piece of a file, or drop it if the file cannot be stored."""
        self._unchecked += len(piece)
        if self._unchecked >= _CHECK_EVERY_BYTES:
            self._unchecked = 0
            if shutil.disk_usage(self._to).free < self._reserve:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if entry.path not in self.unstorable:
            with self._storing(entry):
                _write(descriptor, piece)

    @contextlib.contextmanager
    def _storing(self, entry: Entry) -> Iterator[None]:
        """Record the entry if it cannot be stored, instead of failing for all files.

        Either the local file system does not allow its name or size, or a local file or directory is in its place.
        """
        try:
            yield
        except StateError as err:
            self.unstorable[entry.path] = f"{err.message}; {err.hint}"
        except OSError as err:
            if err.errno not in _UNSTORABLE:
                raise
            self.unstorable[entry.path] = str(err.strerror)

    def cut(self, entry: Entry, size: int) -> None:
        """Truncate a file that became shorter on the node while it was being sent.

        A path at which nothing was received may be an older copy, or a symlink to any file.
        """
        if entry.path in self._arrived:
            os.truncate(self._to / entry.path, min(max(size, 0), entry.size))

    def drop(self, entry: Entry) -> None:
        """Remove a file that the node could not read completely. If nothing was received, keep the older local copy."""
        if entry.path not in self._arrived:
            return
        with contextlib.suppress(FileNotFoundError):
            (self._to / entry.path).unlink()

    def link(self, entry: Entry) -> None:
        """Create a symlink."""
        self._part.unlink(missing_ok=True)
        with self._storing(entry):
            self._part.symlink_to(entry.link or ".")
            self._move_into_place(entry)

    def make_folder(self, entry: Entry) -> None:
        """Create an empty directory.

        If a local symlink or file blocks its path, the directory is listed in `unstorable`.
        """
        with self._storing(entry):
            self._make_parents(entry)

    def _move_into_place(self, entry: Entry) -> None:
        """Move the received file or symlink into place."""
        self._make_parents(entry)
        try:
            self._part.replace(self._to / entry.path)
        except IsADirectoryError as err:
            raise StateError(f"{self._to / entry.path} is a directory", hint=_MAKE_WAY) from err

    def _make_parents(self, entry: Entry) -> None:
        """Create the directories above an entry. Reject symlinks among them, because they may lead anywhere."""
        here = self._to
        for name in entry.path.split("/")[:-1]:
            here = here / name
            if here.is_symlink() or (here.exists() and not here.is_dir()):
                raise StateError(f"{here} is in the way", hint=_MAKE_WAY)
            here.mkdir(exist_ok=True)


def _parts(arriving: ReceiveStream, size: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of each part of a sparse file. The caller takes each part before the next one.

    The offset is -1 if the stream ends early or is malformed.
    """
    end = 0
    while True:
        header = b"".join(arriving.take(EXTENT.size))
        offset, length = EXTENT.unpack(header) if len(header) == EXTENT.size else (size + 1, 0)
        if not length and offset <= size:
            return
        if offset < end or offset + length > size:
            yield -1, 0
            return
        yield offset, length
        end = offset + length


def reserve_bytes(folder: Path) -> int:
    """Return the disk space that downloads to a folder leave free."""
    return min(_RESERVE_BYTES, shutil.disk_usage(folder).free // 10)


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _sweep(to: Path) -> None:
    """Remove the temporary directories left by killed processes of any machine. An output with such a name is kept.

    A process holds a lock in its directory, because process IDs of other machines and containers mean nothing here.
    Older versions only recorded the ID.
    """
    for folder in to.glob(f"{_PREFIX}*"):
        name = folder.name.removeprefix(_PREFIX)
        owner = name.partition("-")[0]
        with contextlib.suppress(OSError):
            if not {path.name for path in folder.iterdir()} <= {_PART, _LOCK}:
                continue
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
