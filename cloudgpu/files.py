"""Open files that the user or another program controls, without hanging and with bounded memory.

A path may refer to anything: a named pipe without a writer, `/dev/zero`, a socket, a file of many gigabytes, a file
that grows while it is read, or a file whose size the kernel does not report. Functions reject such files with an
`OSError` whose `strerror` states the reason, so that callers handle rejected files like file-system errors.
"""

import codecs
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
"""Limit for settings, fault scripts, ignore files and similar small files that users or cloudgpu write."""
KEY_BYTES: Final = 1 * MIB
"""Limit for private keys and certificates."""
RECORD_BYTES: Final = 64 * MIB
"""Limit for records, inventories, catalog snapshots and saved plans."""
KNOWN_HOSTS_BYTES: Final = 16 * MIB
MANIFEST_BYTES: Final = 512 * MIB
"""Limit for the list of a dataset's checksums, which takes about a hundred bytes for each of several million files."""
JOURNAL_BYTES: Final = 512 * MIB
INPUT_BYTES: Final = 64 * MIB
"""Limit for standard input."""
_CHUNK: Final = 1 * MIB
_NAME_KEPT: Final = 40
"""Characters of a file's name to keep in its temporary file's name, which must not exceed the file system's limit."""
_OPEN: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags for opening every file. Without O_NONBLOCK, opening a named pipe would block until its other end is opened."""
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileRefusedError(OSError):
    """A file was rejected before or while it was read. `strerror` states the reason, to be shown after the path."""

    def __str__(self) -> str:
        return str(self.strerror)


class NotUtf8Error(FileRefusedError):
    """A text file has another encoding. `start` is the offset of the first byte that is not UTF-8."""

    def __init__(self, path: Path, start: int, reason: str) -> None:
        super().__init__(errno.EILSEQ, reason, str(path))
        self.start = start


SAVE_AS_UTF8: Final = "save the file as UTF-8"
"""The hint for a `NotUtf8Error`."""


def real_path(path: Path) -> Path | None:
    """Return the absolute path without symbolic links; None for a loop of links, or a name that no file can have."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes."""
    with open_for_reading(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)
        return _bounded(file, limit, path)


def read_text(path: Path, limit: int) -> str:
    """Return the contents of a UTF-8 file of at most `limit` bytes, without a byte order mark."""
    return decode_text(read_bytes(path, limit), path)


def decode_text(content: bytes, path: Path) -> str:
    """Return the contents of a UTF-8 file as text, without the byte order mark that Windows editors write."""
    # PowerShell and Notepad write UTF-16. Without a byte order mark, ASCII text in UTF-16 would be valid UTF-8.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 0 in content[:2]:
        raise NotUtf8Error(path, 0, "it is UTF-16 text, not UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise NotUtf8Error(path, err.start, f"not UTF-8 text (byte {err.start})") from err


def read_json(path: Path, limit: int = RECORD_BYTES) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Return the value in a JSON file."""
    # Run records may contain NaN, the loss of a training run that diverged; decoding rejects NaN in any other field.
    return parse_json(read_text(path, limit), nan=True)


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Parse JSON text. NaN and Infinity, which are not JSON, are accepted only if `nan` is true."""
    try:
        return json.loads(text, parse_constant=None if nan else _refuse_constant)
    except RecursionError as err:
        message = "nested too deeply"
        raise ValueError(message) from err


def _refuse_constant(name: str) -> None:
    message = f"{name} is not JSON"
    raise ValueError(message)


def read_input(limit: int = INPUT_BYTES) -> bytes:
    """Read standard input, up to `limit` bytes."""
    return _bounded(sys.stdin.buffer, limit, Path("standard input"))


def open_for_reading(path: Path) -> io.BufferedReader:
    """Open a regular file, following symbolic links."""
    return io.BufferedReader(open_unbuffered(path))


def open_unbuffered(path: Path) -> io.FileIO:
    """Open a regular file without buffering, for reading in large chunks."""
    return io.FileIO(open_descriptor(path, os.O_RDONLY), "rb")


def require_regular_file(path: Path, limit: int) -> None:
    """Verify that a file is a regular file of at most `limit` bytes, before a library opens it."""
    with open_for_reading(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)


def open_for_appending(path: Path, mode: int = 0o666) -> io.BufferedWriter:
    """Open a regular file for appending or for locking, and create it if it does not exist."""
    descriptor = open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    return io.BufferedWriter(io.FileIO(descriptor, "ab"))


def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file with these `os.open` flags and return its descriptor."""
    try:
        # Opening a device may have side effects (a tape rewinds), so check the path before opening it. Check the
        # descriptor again afterwards, because the path may have been replaced in between.
        _require_regular(path.stat().st_mode, path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    except ValueError as err:  # the path contains a NUL or half of a surrogate pair
        raise FileRefusedError(errno.EINVAL, "not a valid file name", str(path)) from err
    descriptor = os.open(path, flags | _OPEN, mode)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of `path` atomically: a reader sees either the old or the new file.

    If `durable` is true, the content is on disk before this function returns.

    A symbolic link is replaced, not followed. A named pipe or a socket at this path is replaced as well, because
    opening it could block.
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
    """Create a file with this content. An existing file, such as one that a killed process left, is deleted first."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def write_for_user(path: Path, content: bytes) -> None:
    """Write a file to a path that the user chose, atomically and with the permissions that the umask allows.

    A symbolic link is followed, so that its target is replaced. An existing file keeps its mode.
    """
    target = path.resolve()
    try:
        status = target.stat()
    except FileNotFoundError:
        replace(target, content, mode=0o666)
        return
    _require_regular(status.st_mode, path)
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    replace(target, content, mode=stat.S_IMODE(status.st_mode))


def _refuse_device(path: Path) -> None:
    """Refuse to replace a device: as root, renaming a file to `/dev/null` would break the machine."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # either nothing exists at this path, or the write will fail with the same error
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise _not_regular(mode, path)


def make_private_directory(directory: Path) -> None:
    """Create a directory and its missing parents, all accessible only to their owner. Existing ones stay as they are.

    `Path.mkdir` applies its mode to the directory only, and lets other users read the parents that it creates.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileNotFoundError:
        if directory.parent == directory:
            raise
        make_private_directory(directory.parent)
        make_private_directory(directory)
    except OSError:
        if not directory.is_dir():
            raise


def sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that a file renamed in it stays renamed after a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """Read to the end of the file. Do not rely on `stat`: files in /proc report size 0, and a file may grow."""
    chunks, remaining = [], limit + 1
    while remaining and (chunk := file.read(min(_CHUNK, remaining))):
        remaining -= len(chunk)
        chunks.append(chunk)
    if not remaining:
        raise _too_large(path, limit)
    return b"".join(chunks)
