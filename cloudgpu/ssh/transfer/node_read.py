"""The sending half of the node's program: list a directory, and read files. Sent after `node_tree.py`.

`list FROM`: read patterns; return the matching entries, in several messages, each with the bytes that it occupies on
the disk. The last message contains a reason for each entry that cannot be transferred.

`read FROM`: read entries; for each entry, send a byte that shows whether its contents follow, then the contents. The
holes of a sparse file are not sent. At the end, send the true sizes of files that shrank, and the read errors.
"""

# File names on a node are bytes, which pathlib does not support; the lines above the marker comment are not sent.
# ruff: noqa: PTH112, PTH115, PTH116, PTH118, PTH120, PTH123, I001

from __future__ import annotations

from cloudgpu.ssh.transfer.node_tree import CHUNK_BYTES, EXTENT, VERBS, Entry, RefusedError, answer, encoded
from cloudgpu.ssh.transfer.node_tree import entry_at, place, take_entries, take_json, walk

# -- sent from here on --
import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import IO

MOST_ENTRIES = 2000000
MOST_NAMED = 1000
ENTRIES_PER_MESSAGE = 500
BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system
FOLLOWS, SKIPPED, PARTS_FOLLOW = b"\001", b"\000", b"\002"
KINDS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "named pipe", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def stored_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file occupies on its disk, at most its size. The holes of a sparse file occupy none."""
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, int(blocks) * BLOCK_BYTES)


def extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of the parts of a file, up to `size`, that are not holes.

    A file system that cannot list holes has one part, the whole file.
    """
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except (OSError, AttributeError) as err:
            if getattr(err, "errno", None) == errno.ENXIO:  # nothing but a hole follows
                return
            start, end = at, size
        if start >= size:
            return
        yield start, min(end, size) - start
        at = end


def stays_inside(path: bytes, target: bytes) -> bool:
    """Return True if a symlink at `path` (relative to a root) with this target stays below the root.

    `..` is allowed only at the start: after a name, it could follow another symlink out of the root. Checking the
    target's text is enough, because the parents of a symlink are real directories, and every other symlink must
    follow the same rule.
    """
    if target.startswith(b"/") or not target:
        return False
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    ups = next((at for at, name in enumerate(names) if name != b".."), len(names))
    return b".." not in names[ups:] and ups <= path.count(b"/")


def relative_link(root: bytes, path: bytes) -> tuple[bytes, str]:
    """Return a symlink target that stays inside a copy of `root`, or an empty target and the reason there is none.

    A target that stays inside is kept. Any other symlink that resolves to a path below `root`, such as an absolute one,
    becomes relative. `root` must be a real path.
    """
    full = os.path.join(root, path)
    text = os.readlink(full)
    reason = unresolved(full, text)
    if reason:
        return b"", reason
    real = os.path.realpath(full)
    if not below(root, real):
        return b"", "symlink that points outside the directory, to " + shown(text)
    if stays_inside(path, text):
        return text, ""
    # The path as written preserves a chain of symlinks, but it is used only if it leads to the same target.
    written = os.path.normpath(os.path.join(os.path.dirname(full), text))
    target = written if below(root, written) and os.path.realpath(written) == real else real
    return os.path.relpath(target, os.path.dirname(full)), ""


def unresolved(link: bytes, text: bytes) -> str:
    """Return the reason why a symlink does not resolve; empty if it does."""
    try:
        os.stat(link)
    except OSError as err:
        known = {errno.ELOOP: "symlink loop, to ", errno.ENOENT: "dangling symlink, to "}
        return known.get(err.errno or 0, str(err.strerror) + ": symlink to ") + shown(text)
    return ""


def below(root: bytes, path: bytes) -> bool:
    """Return True for `root` itself and for every path inside it."""
    return (path + b"/").startswith(root.rstrip(b"/") + b"/")


def portable_entry(root: bytes, path: bytes) -> Entry | None:
    """Return the manifest entry of a file or symlink, otherwise None. Make symlinks relative if possible."""
    entry = entry_at(root, path)
    if entry is None or entry.link is None or stays_inside(path, encoded(entry.link)):
        return entry
    with contextlib.suppress(OSError):
        text, _ = relative_link(root, path)
        return entry._replace(link=text.decode("utf-8", "surrogateescape")) if text else entry
    return entry


def listing(origin: str, source: IO[bytes]) -> None:
    """Send the entries that match a pattern. A matching directory includes everything below it.

    Matching entries that cannot be transferred and all unreadable directories are sent as `[path, reason, lost]`, with
    `lost` set if contents that a pattern requests are missing.
    """
    root = place(origin)
    if not os.path.isdir(root):
        raise RefusedError("no such directory")
    patterns = take_patterns(source)
    found = FoundEntries()
    skipped = SkippedEntries()

    def unreadable(folder: bytes, err: OSError) -> None:
        lost = any(matches(pattern, folder) for pattern in patterns)
        skipped.add(shown(folder) + "/", "cannot be read: " + str(err.strerror), lost=lost)

    for path in walk(root, unreadable):
        if not any(matches(pattern, path) for pattern in patterns):
            continue
        entry, stored, reason, lost = examined(root, path)
        if entry is not None:
            found.add(entry, stored)
        elif reason:
            skipped.add(shown(path), reason, lost=lost)
    answer({"entries": found.pending, "skipped": skipped.named(), "unnamed": skipped.unnamed})


class FoundEntries:
    """The entries of a listing. They are sent in several messages, because a list of millions of files needs memory."""

    def __init__(self) -> None:
        self.pending: list[list[object]] = []
        """Entries that have not been sent."""
        self._sent = 0

    def add(self, entry: Entry, stored: int) -> None:
        """Add an entry, and send the pending ones if they fill a message."""
        self.pending.append([*entry, stored])
        if len(self.pending) == ENTRIES_PER_MESSAGE:
            self._sent += len(self.pending)
            if self._sent > MOST_ENTRIES:
                raise RefusedError("more than " + str(MOST_ENTRIES) + " files match; pack them into archives")
            answer({"entries": self.pending})
            self.pending = []


def take_patterns(source: IO[bytes]) -> list[re.Pattern[bytes]]:
    """Read a message that contains patterns."""
    asked = take_json(source)
    return [re.compile(encoded(str(pattern)), re.DOTALL) for pattern in (asked if isinstance(asked, list) else [])]


class SkippedEntries:
    """The entries that cannot be transferred. Only `MOST_NAMED` are kept, those with lost contents first."""

    def __init__(self) -> None:
        self._lost: list[tuple[str, str, bool]] = []
        self._others: list[tuple[str, str, bool]] = []
        self._count = 0

    def add(self, path: str, reason: str, *, lost: bool) -> None:
        """Add an entry."""
        self._count += 1
        kept = self._lost if lost else self._others
        if len(kept) < MOST_NAMED:
            kept.append((path, reason, lost))

    def named(self) -> list[tuple[str, str, bool]]:
        """Return the entries to report, sorted."""
        return (sorted(self._lost) + sorted(self._others))[:MOST_NAMED]

    @property
    def unnamed(self) -> int:
        """Number of entries that are not reported."""
        return max(0, self._count - MOST_NAMED)


def shown(path: bytes) -> str:
    """Return a path as text that JSON preserves exactly."""
    return path.decode("utf-8", "surrogateescape")


def examined(root: bytes, path: bytes) -> tuple[Entry | None, int, str, bool]:
    """Return the entry at `path` and the bytes that it occupies, or why it cannot be transferred and if data is lost.

    If the entry was deleted in the meantime, return no entry and an empty reason.
    """
    full = os.path.join(root, path)
    try:
        status = os.lstat(full)
        if stat.S_ISLNK(status.st_mode):
            text, reason = relative_link(root, path)
            return (None if reason else Entry(shown(path), 0, 0, 0, shown(text))), 0, reason, False
        if stat.S_ISREG(status.st_mode) and not os.access(full, os.R_OK):
            return None, 0, "cannot be read: Permission denied", True
        return entry_at(root, path), stored_bytes(status), KINDS.get(stat.S_IFMT(status.st_mode), ""), False
    except FileNotFoundError:
        return None, 0, "", False  # deleted since its directory was read
    except OSError as err:
        return None, 0, "cannot be read: " + str(err.strerror), True


def matches(pattern: re.Pattern[bytes], path: bytes) -> bool:
    """Return True if the path or a directory above it matches."""
    while path:
        if pattern.fullmatch(path):
            return True
        path = path.rpartition(b"/")[0]
    return False


def read(origin: str, source: IO[bytes]) -> None:
    """Send the contents of the requested files. Pad files that shrank; send true sizes and errors at the end."""
    root = place(origin)
    short: dict[int, int] = {}
    failed: dict[int, str] = {}
    for index, entry in enumerate(take_entries(source)):
        try:
            file = opened(os.path.join(root, encoded(entry.path)))
        except OSError as err:
            # Without this byte, the node would have to send zeros for the contents of a missing file.
            sys.stdout.buffer.write(SKIPPED)
            failed[index] = "deleted during the download" if err.errno == errno.ENOENT else str(err.strerror)
            continue
        with file:
            is_sparse = stored_bytes(os.fstat(file.fileno())) < entry.size
            sys.stdout.buffer.write(PARTS_FOLLOW if is_sparse else FOLLOWS)
            sent, problem = (send_parts if is_sparse else send)(file, entry.size)
        if problem:
            failed[index] = problem
        elif sent != entry.size:
            short[index] = sent
    answer({"short": short, "failed": failed})


def opened(path: bytes) -> IO[bytes]:
    """Open a regular file for reading. Other files are rejected, because opening a named pipe would block forever."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no longer a regular file")
    return open(handle, "rb", buffering=0)


def send(file: IO[bytes], size: int) -> tuple[int, str]:
    """Send `size` bytes, padded with zeros; return the number of bytes from the file, and the read error, if any."""
    sent, problem = 0, ""
    out = sys.stdout.buffer
    while sent < size:
        try:
            piece = file.read(min(CHUNK_BYTES, size - sent))
        except OSError as err:
            problem = str(err.strerror)
            break
        if not piece:
            break
        out.write(piece)
        sent += len(piece)
    for at in range(sent, size, CHUNK_BYTES):
        out.write(bytes(min(CHUNK_BYTES, size - at)))
    return sent, problem


def send_parts(file: IO[bytes], size: int) -> tuple[int, str]:
    """Send a sparse file without its holes; return its size, at most `size`, and the read error, if any."""
    out = sys.stdout.buffer
    for offset, length in extents(file.fileno(), size):
        done = 0
        while done < length:
            try:
                piece = os.pread(file.fileno(), min(CHUNK_BYTES, length - done), offset + done)
            except OSError as err:
                out.write(EXTENT.pack(0, 0))
                return offset + done, str(err.strerror)
            if not piece:  # truncated in the meantime
                break
            out.write(EXTENT.pack(offset + done, len(piece)) + piece)
            done += len(piece)
    out.write(EXTENT.pack(0, 0))
    return min(size, os.fstat(file.fileno()).st_size), ""


VERBS.update({"list": listing, "read": read})
