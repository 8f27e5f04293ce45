"""Open files that the user or another program controls, without hanging and without unbounded memory.

A path may lead to anything: a named pipe that nobody writes, `/dev/zero`, a socket, a file of many gigabytes, one that
grows while it is read or whose size the kernel does not know. Every refusal is an `OSError` whose `strerror` says what
is wrong, so each caller maps it to the typed error of its own layer together with the errors of the file system.
"""

import errno
import io
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import IO, Any, Final

MIB: Final = 1 << 20
SETTINGS_BYTES: Final = 1 * MIB
"""Settings, fault scripts, ignore files, small notes: written by hand or by us, never large."""
KEY_BYTES: Final = 1 * MIB
"""Private keys and certificates."""
RECORD_BYTES: Final = 64 * MIB
"""Records, inventories, catalog snapshots, saved plans."""
KNOWN_HOSTS_BYTES: Final = 16 * MIB
MANIFEST_BYTES: Final = 512 * MIB
"""Checksums of a dataset: a hundred bytes for each of several million files."""
JOURNAL_BYTES: Final = 512 * MIB
INPUT_BYTES: Final = 64 * MIB
"""Standard input."""
_CHUNK: Final = 1 * MIB
_NAME_KEPT: Final = 40
"""Characters of a name that a temporary file shows: the longest name that a directory takes has no room for more."""
_OPEN: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, opening a named pipe waits for its other end."""
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileRefusedError(OSError):
    """A file that is not opened or not read on; `strerror` says why, as a clause that fits behind a colon."""

    def __str__(self) -> str:
        return str(self.strerror)


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes.

    Raises:
        OSError: It is not a regular file, is larger, or cannot be read.
    """
    with open_for_reading(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)
        return _bounded(file, limit, path)


def read_text(path: Path, limit: int) -> str:
    """Return the contents of a UTF-8 file of at most `limit` bytes.

    Raises:
        OSError: As `read_bytes`, or it is not UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode()
    except UnicodeDecodeError as err:
        raise FileRefusedError(errno.EILSEQ, f"not UTF-8 text (byte {err.start})", str(path)) from err


def read_json(path: Path, limit: int = RECORD_BYTES) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Return the value in a JSON file.

    Raises:
        OSError: As `read_text`.
        ValueError: It is not JSON, or is nested too deeply.
    """
    # The records of runs hold the loss of a training that diverged; whoever decodes them refuses it elsewhere.
    return parse_json(read_text(path, limit), nan=True)


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Return the value of a JSON text; NaN and Infinity, which JSON does not have, only with `nan`.

    Raises:
        ValueError: It is not JSON, or is nested too deeply: the parser says so with a RecursionError, which callers
            that expect damaged files do not catch.
    """
    try:
        return json.loads(text, parse_constant=None if nan else _refuse_constant)
    except RecursionError as err:
        message = "nested too deeply"
        raise ValueError(message) from err


def _refuse_constant(name: str) -> None:
    message = f"{name} is not JSON"
    raise ValueError(message)


def read_input(limit: int = INPUT_BYTES) -> bytes:
    """Return standard input, of at most `limit` bytes.

    Raises:
        OSError: It is longer, or cannot be read.
    """
    return _bounded(sys.stdin.buffer, limit, Path("standard input"))


def open_for_reading(path: Path) -> io.BufferedReader:
    """Open a regular file, following links.

    Raises:
        OSError: It is not a regular file, or cannot be opened.
    """
    return io.BufferedReader(open_unbuffered(path))


def open_unbuffered(path: Path) -> io.FileIO:
    """Open a regular file for reading in large pieces.

    Raises:
        OSError: As `open_for_reading`.
    """
    return io.FileIO(_opened(path, os.O_RDONLY), "rb")


def check(path: Path, limit: int) -> None:
    """Verify that a file that a library will open is a regular file of at most `limit` bytes.

    Raises:
        OSError: As `read_bytes`.
    """
    with open_for_reading(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)


def open_for_appending(path: Path, mode: int = 0o666) -> io.BufferedWriter:
    """Open a regular file to append to it, made if there is none; also to lock it.

    Raises:
        OSError: Something else has its name, or it cannot be opened.
    """
    descriptor = _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    return io.BufferedWriter(io.FileIO(descriptor, "ab"))


def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor for a regular file opened with these flags of `os.open`.

    Raises:
        OSError: Something else has its name, or it cannot be opened.
    """
    return _opened(path, flags, mode)


def replace(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of `path` atomically: a reader sees either the old or the new file.

    With `durable` it is on the disk before this returns.

    A link is replaced, not followed. A named pipe or a socket in its place is replaced as well: a process that waits
    at its other end must not hold us up.

    Raises:
        OSError: It cannot be written, or is a device or a directory.
    """
    _refuse_device(path)
    temporary = path.with_name(f".{path.name[:_NAME_KEPT]}.{secrets.token_hex(8)}")
    try:
        create(temporary, content, mode=mode, durable=durable)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def create(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Make a file with this content; whatever a killed process left under this name is removed first.

    Raises:
        OSError: It cannot be made.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def write_for_user(path: Path, content: bytes) -> None:
    """Write a file where the user asked for it: replaced in one step, with the permissions of any other file of theirs.

    A link is followed, so that the file behind it changes.

    Raises:
        OSError: It cannot be written, or something other than a regular file has that name.
    """
    target = path.resolve()
    try:
        found = target.stat()
    except FileNotFoundError:
        replace(target, content, mode=0o666)
        return
    _require_regular(found.st_mode, path)
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    replace(target, content, mode=stat.S_IMODE(found.st_mode))


def _refuse_device(path: Path) -> None:
    """Reject replacing a device: as root, a rename over `/dev/null` breaks the machine.

    Raises:
        OSError: It is one.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there, or the write itself meets the same error
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise _not_regular(mode, path)


def sync_directory(directory: Path) -> None:
    """Flush a directory, so that a rename in it survives a power failure.

    Raises:
        OSError: The disk refuses.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int, mode: int = 0o666) -> int:
    try:
        # Opening a device may already have an effect (a tape rewinds), so what the name leads to is checked first,
        # and the descriptor once more: the name may lead elsewhere by then.
        _require_regular(path.stat().st_mode, path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    except ValueError as err:  # a NUL or half of a surrogate pair in its name
        raise FileRefusedError(errno.EINVAL, "not a valid file name", str(path)) from err
    descriptor = os.open(path, flags | _OPEN, mode)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise _not_regular(mode, path)


def _not_regular(mode: int, path: Path) -> FileRefusedError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    return FileRefusedError(number, f"{kind}, not a regular file", str(path))


def _too_large(path: Path, limit: int) -> FileRefusedError:
    shown = f"{limit // MIB} MiB" if limit % MIB == 0 else f"{limit} bytes"
    return FileRefusedError(errno.EFBIG, f"larger than {shown}, the limit for this file", str(path))


def _bounded(file: IO[bytes], limit: int, path: Path) -> bytes:
    """Read to the end, which the size in `stat` does not tell: /proc says 0, and a file may grow meanwhile."""
    pieces, left = [], limit + 1
    while left and (piece := file.read(min(_CHUNK, left))):
        left -= len(piece)
        pieces.append(piece)
    if not left:
        raise _too_large(path, limit)
    return b"".join(pieces)
