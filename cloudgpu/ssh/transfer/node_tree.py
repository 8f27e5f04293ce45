"""The program that runs on the node during a transfer: a single file, standard library only, Python 3.8 or newer.

`plan TO`: read the manifest; return the entries that are missing or different, and the number of extra files.

`apply TO`: read the manifest, the entries that `plan` requested and their contents, and make TO match the manifest.

`claim TO`: create TO if it is missing, and mark it as managed by cloudgpu if it is new or empty.

`list FROM` and `read FROM` are in `node_read.py`, which is sent after this file when needed.

A manifest is a list of entries. Every file is written to a temporary directory inside TO and then renamed, so that
readers never see a partial file. The output starts with a marker, because shell start-up files may print text first.
An error is reported as one line on standard error and exit code 1.
"""

# File names on a node are bytes, which pathlib does not support.
# ruff: noqa: PTH101, PTH102, PTH103, PTH105, PTH106, PTH108, PTH110, PTH111, PTH112, PTH114, PTH115, PTH118, PTH123
# ruff: noqa: PTH208, PTH211

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

PART = b".cloudgpu-part"
CHUNK_BYTES = 1 << 20
SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ, which Python before 3.10 does not define
LONGEST_MESSAGE_BYTES = 1 << 30
MARK = b"\036cloudgpu\036"
SECOND_NS = 1000000000
EXTENT = struct.Struct(">QQ")
"""Offset and length of a part of a sparse file. The parts are sent in order; one of length 0 ends the file."""
SILENT_S = 120
"""Maximum pause in standard input, in seconds.

Shorter than the caller's time limit, so that a stalled transfer releases its lock before a transfer that waits for the
lock times out.
"""


class RefusedError(Exception):
    """The request cannot be carried out; the message is the reason."""


class Entry(NamedTuple):
    """A file, a symlink, or an empty directory, whose path ends with a slash. Only files have size, time and mode."""

    path: str
    size: int
    mtime_ns: int
    mode: int
    link: str | None


def is_folder(entry: Entry) -> bool:
    """Return True if the entry is an empty directory."""
    return entry.path.endswith("/")


def encoded(path: str) -> bytes:
    """Return the bytes of a path that was sent as JSON text."""
    return path.encode("utf-8", "surrogateescape")


def place(path: str) -> bytes:
    """Return the real, absolute path. `~` and relative paths start at the home directory."""
    return os.path.realpath(os.path.join(os.path.expanduser(b"~"), os.path.expanduser(encoded(path))))


def cut_off(_number: int, _frame: object) -> None:
    """Stop waiting for a silent sender. Without this limit, a connection that a router dropped would block forever."""
    raise RefusedError(f"the transfer timed out: no data received for {SILENT_S} s")


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Limit how long the block waits for the sender."""
    signal.setitimer(signal.ITIMER_REAL, SILENT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def take(source: IO[bytes], count: int) -> bytes:
    """Read exactly `count` bytes, or raise an error if the sender disconnects."""
    pieces = []
    while count:
        with awaited():
            piece: bytes = source.read1(count)  # type: ignore[attr-defined]  # buffered streams have read1
        if not piece:
            raise RefusedError("the transfer was interrupted")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def take_json(source: IO[bytes]) -> object:
    """Read one message: its length in eight bytes, then JSON."""
    size = struct.unpack(">Q", take(source, 8))[0]
    if size > LONGEST_MESSAGE_BYTES:
        raise RefusedError("the transfer is malformed")
    try:
        return json.loads(take(source, size).decode("ascii"))
    except (ValueError, RecursionError):
        raise RefusedError("the transfer is malformed") from None


def take_entries(source: IO[bytes]) -> list[Entry]:
    """Read a message that contains a manifest."""
    message = take_json(source)
    if not isinstance(message, list) or not all(is_entry(fields) for fields in message):
        raise RefusedError("the transfer is malformed")
    return [Entry(*fields) for fields in message]


def is_entry(fields: object) -> bool:
    """Return True if a JSON value has the shape of an `Entry`."""
    if not isinstance(fields, list) or len(fields) != len(Entry._fields):
        return False
    path, size, mtime_ns, mode, link = fields
    numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in (size, mode))
    return isinstance(path, str) and numbers and type(mtime_ns) is int and (link is None or isinstance(link, str))


def answer(value: object) -> None:
    """Send one message."""
    text = json.dumps(value).encode("ascii")
    sys.stdout.buffer.write(struct.pack(">Q", len(text)) + text)
    sys.stdout.buffer.flush()


def entry_at(root: bytes, path: bytes) -> Entry | None:
    """Return the manifest entry of `path`, or None if it is no regular file, symlink or, with a slash, directory."""
    full = os.path.join(root, path)
    try:
        status = os.lstat(full.rstrip(b"/"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    name = path.decode("utf-8", "surrogateescape")
    if path.endswith(b"/"):
        return Entry(name, 0, 0, 0, None) if stat.S_ISDIR(status.st_mode) else None
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, 0, 0, 0, os.readlink(full).decode("utf-8", "surrogateescape"))
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(name, status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode) & 0o777, None)


def same(expected: Entry, actual: Entry | None) -> bool:
    """Return True if the entry need not be sent. If the file system stores only whole seconds, ignore fractions."""
    if actual is None or expected.link != actual.link:
        return False
    if expected.link is not None:
        return True
    coarse = actual.mtime_ns % SECOND_NS == 0 and actual.mtime_ns // SECOND_NS == expected.mtime_ns // SECOND_NS
    on_time = coarse or expected.mtime_ns == actual.mtime_ns
    return on_time and expected.size == actual.size and expected.mode == actual.mode


def walk(root: bytes, unreadable: Callable[[bytes, OSError], None] | None = None) -> Iterator[bytes]:
    """Yield the relative paths below `root` of all non-directories, and of empty directories with a slash at the end.

    The transfer's temporary directory is left out.
    `unreadable` is called with each directory below `root` that cannot be listed. The error is raised if there is no
    `unreadable`, or if `root` itself cannot be listed.
    """
    pending = [b""]
    while pending:
        folder = pending.pop()
        try:
            # The entries are not collected first, because a directory may contain millions of files.
            with os.scandir(os.path.join(root, folder)) as scan:
                empty = True
                for entry in scan:
                    empty = False
                    path = folder + entry.name
                    if path == PART:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(path + b"/")
                    else:
                        yield path
            if folder and empty:
                yield folder
        except OSError as err:
            if unreadable is None or not folder:
                raise
            unreadable(folder.rstrip(b"/"), err)


def plan(to: str, source: IO[bytes]) -> None:
    """Compare a directory with the manifest, without changing it."""
    root = place(to)
    check_ours(root)
    manifest = take_entries(source)
    changed = [index for index, entry in enumerate(manifest) if not same(entry, entry_at(root, encoded(entry.path)))]
    names = {encoded(entry.path) for entry in manifest}
    extra = sum(path not in names for path in walk(root)) if os.path.isdir(root) else 0
    answer({"wanted": changed, "extra": extra})


def marker_of(root: bytes) -> bytes:
    """Return the marker's path, which is outside `root`, because `root` contains only the sent files."""
    folder = os.path.join(os.path.expanduser(b"~"), b".cloudgpu", b"trees")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, hashlib.sha256(root).hexdigest()[:32].encode("ascii"))


def check_ours(root: bytes) -> None:
    """Reject the home directory, its parents, and a directory with contents that cloudgpu did not put there."""
    home = os.path.realpath(os.path.expanduser(b"~"))
    if (home + b"/").startswith(root.rstrip(b"/") + b"/"):
        raise RefusedError("this directory is or contains the home directory; choose another directory")
    filled = os.path.lexists(root) and not (os.path.isdir(root) and not os.listdir(root))
    if filled and not os.path.exists(marker_of(root)):
        raise RefusedError("this directory has contents that cloudgpu did not put there; choose another directory")


def claim(root: bytes) -> IO[bytes]:
    """Lock the marker once other transfers have finished. Create the marker only for a new or empty directory."""
    check_ours(root)
    held = open(marker_of(root), "ab")  # noqa: SIM115  # the caller keeps the file open and thereby locked
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def claim_alone(to: str, source: IO[bytes]) -> None:
    """Create the directory and the marker that allows a later `apply`."""
    del source
    root = place(to)
    with claim(root):
        os.makedirs(root, exist_ok=True)
    answer({})


def apply(to: str, source: IO[bytes]) -> None:
    """Make the directory match the manifest: write contents, then delete extra files."""
    root = place(to)
    manifest, changed, sparse = take_entries(source), take_entries(source), take_json(source)
    if not isinstance(sparse, list):
        raise RefusedError("the transfer is malformed")
    with claim(root):
        part = os.path.join(root, PART)
        shutil.rmtree(part, ignore_errors=True)  # left by a killed transfer
        os.makedirs(part, mode=0o700)
        try:
            receive(root, changed, frozenset(sparse), source)
            prune(root, {encoded(entry.path) for entry in manifest})
        finally:
            shutil.rmtree(part, ignore_errors=True)


def receive(root: bytes, entries: Iterable[Entry], sparse: frozenset[int], source: IO[bytes]) -> None:
    """Write each entry to the temporary directory, then move it to its destination.

    `sparse` contains the indices of the files whose holes are not sent.
    """
    ready = {b""}
    temporary = os.path.join(root, PART, b"file")
    for index, (name, size, mtime_ns, mode, link) in enumerate(entries):
        path = encoded(name)
        make_parents(root, path, ready)
        if path.endswith(b"/"):
            continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if link is not None:
            os.symlink(encoded(link), temporary)
        else:
            write(temporary, size, source, sparse=index in sparse)
            os.chmod(temporary, mode)
            os.utime(temporary, ns=(mtime_ns, mtime_ns))
        full = os.path.join(root, path)
        try:
            os.replace(temporary, full)
        except IsADirectoryError:
            shutil.rmtree(full)
            os.replace(temporary, full)


def write(path: bytes, size: int, source: IO[bytes], *, sparse: bool = False) -> None:
    """Copy the next `size` bytes of the stream, or the next sparse file, into a new file."""
    with open(path, "xb", buffering=0) as file:
        if sparse:
            write_parts(file, size, source)
        else:
            copy(source, size - poured(source, size, file.fileno()) if size >= CHUNK_BYTES else size, file)


def write_parts(file: IO[bytes], size: int, source: IO[bytes]) -> None:
    """Write the parts of a sparse file, and leave its holes."""
    while True:
        offset, length = EXTENT.unpack(take(source, EXTENT.size))
        if not length:
            break
        file.seek(offset)
        copy(source, length, file)
    file.truncate(size)


def copy(source: IO[bytes], left: int, file: IO[bytes]) -> None:
    """Copy the next bytes of the stream into a file."""
    while left:
        piece = take(source, min(left, CHUNK_BYTES))
        left -= len(piece)
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]


def poured(source: IO[bytes], size: int, file: int) -> int:
    """Move bytes from the pipe to the file in the kernel; return the number moved, or 0 if splice is unavailable."""
    peek = getattr(source, "peek", None)
    if peek is None or not hasattr(os, "splice"):
        return 0
    with awaited():
        held = peek()[:size]  # bytes that are already buffered come first
    done = 0
    while done < len(held):
        done += os.write(file, take(source, len(held) - done))
    with contextlib.suppress(OSError):  # not a pipe, or the file system lacks splice: the caller copies the rest
        while done < size:
            with awaited():
                moved = os.splice(source.fileno(), file, min(CHUNK_BYTES, size - done))
            if not moved:
                raise RefusedError("the transfer was interrupted")
            done += moved
    return done


def make_parents(root: bytes, path: bytes, ready: set[bytes]) -> None:
    """Create the directories above `path`, replacing files and symlinks. A symlink could lead outside `root`."""
    parent = path.rpartition(b"/")[0]
    if parent in ready:
        return
    make_parents(root, parent, ready)
    full = os.path.join(root, parent)
    if os.path.lexists(full) and (os.path.islink(full) or not os.path.isdir(full)):
        os.unlink(full)
    if not os.path.isdir(full):
        os.mkdir(full)
    ready.add(parent)


def prune(root: bytes, names: set[bytes]) -> None:
    """Remove files and symlinks that are not in the manifest, and directories that are empty afterwards."""
    parents = {b"", PART}
    for name in names:
        parents.update(name[:at] for at, byte in enumerate(name) if byte == ord("/"))
    for here, folders, files in os.walk(root, topdown=False):
        below = here[len(root) :].strip(b"/")
        if below == PART:
            continue
        for name in files + [folder for folder in folders if os.path.islink(os.path.join(here, folder))]:
            if os.path.join(below, name) not in names:
                os.unlink(os.path.join(here, name))
        if below not in parents:
            os.rmdir(here)


def widened(source: IO[bytes]) -> IO[bytes]:
    """Return standard input with a larger pipe buffer, which reduces context switches between sender and writer."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(source.fileno(), SET_PIPE_SIZE, CHUNK_BYTES)
    return source


VERBS: dict[str, Callable[[str, IO[bytes]], None]] = {"plan": plan, "claim": claim_alone, "apply": apply}


def main(verb: str, where: str) -> int:
    """Run one verb and return the exit code."""
    sys.stdout.buffer.write(MARK)
    signal.signal(signal.SIGALRM, cut_off)
    try:
        VERBS[verb](where, widened(sys.stdin.buffer))
        sys.stdout.buffer.flush()
    except (OSError, RefusedError) as err:
        text = f"{err.strerror}: {os.fsdecode(err.filename or where)}" if isinstance(err, OSError) else str(err)
        sys.stderr.buffer.write(text.encode("utf-8", "replace") + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-2], sys.argv[-1]))
