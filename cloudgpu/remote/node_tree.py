"""What runs on the node during a transfer: one stdlib-only file, Python >= 3.8, sent through standard input.

`plan TO`: reads the manifest, answers which entries are missing or different and how much is there too much.
`apply TO`: reads the manifest, the entries of it that `plan` asked for and their contents, and makes TO hold exactly
the manifest.
`claim TO`: makes TO ours to fill, if it is new or empty; changes nothing in it.
`list FROM`: reads patterns, answers the matching entries, and names what matches and cannot travel.
`read FROM`: reads entries, sends for each one a byte that says whether its contents follow, and the contents.

A manifest is a list of entries. Every file is written beside its
place and then renamed, so a reader never sees half of one. Output begins with a mark: what comes before it was said by
the shell's start-up files and is no part of the answer. Errors are one line on standard error and exit code 1.
"""

# Names on a node are bytes, which pathlib does not hold.
# ruff: noqa: PTH101, PTH102, PTH103, PTH105, PTH106, PTH108, PTH110, PTH111, PTH112, PTH114, PTH115, PTH118, PTH123
# ruff: noqa: PTH116, PTH120, PTH208, PTH211

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

PART = b".cloudgpu-part"
CHUNK_BYTES = 1 << 20
SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ, which Python names from 3.10 on
LONGEST_MESSAGE_BYTES = 1 << 30
MARK = b"\036cloudgpu\036"
SECOND_NS = 1000000000
MOST_ENTRIES = 1000000  # both sides hold the whole list in memory
MOST_NAMED = 1000
FOLLOWS, SKIPPED = b"\001", b"\000"
KINDS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "named pipe", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class RefusedError(Exception):
    """Why this directory is left alone."""


class Entry(NamedTuple):
    """One file or link. A link has no size, time or mode of its own."""

    path: str
    size: int
    mtime_ns: int
    mode: int
    link: str | None


def encoded(path: str) -> bytes:
    """The bytes of a path that travelled as JSON text."""
    return path.encode("utf-8", "surrogateescape")


def place(path: str) -> bytes:
    """An absolute path; `~` is the login directory, and so is where a relative path starts."""
    return os.path.realpath(os.path.join(os.path.expanduser(b"~"), os.path.expanduser(encoded(path))))


def take(source: IO[bytes], count: int) -> bytes:
    """Exactly `count` bytes; less means that the sender is gone."""
    piece = source.read(count)
    if len(piece) != count:
        raise RefusedError("the transfer was cut off")
    return piece


def take_json(source: IO[bytes]) -> object:
    """One message: its length in eight bytes, then JSON."""
    size = struct.unpack(">Q", take(source, 8))[0]
    if size > LONGEST_MESSAGE_BYTES:
        raise RefusedError("the transfer makes no sense")
    return json.loads(take(source, size).decode("ascii"))


def take_entries(source: IO[bytes]) -> list[Entry]:
    """A message that is a manifest."""
    message = take_json(source)
    return [Entry(*fields) for fields in message] if isinstance(message, list) else []


def answer(value: object) -> None:
    """Send one message."""
    text = json.dumps(value).encode("ascii")
    sys.stdout.buffer.write(struct.pack(">Q", len(text)) + text)
    sys.stdout.buffer.flush()


def entry_at(root: bytes, path: bytes) -> Entry | None:
    """The manifest entry of what lies at `path`; None when there is nothing of a kind that travels."""
    full = os.path.join(root, path)
    try:
        found = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        return None
    name = path.decode("utf-8", "surrogateescape")
    if stat.S_ISLNK(found.st_mode):
        return Entry(name, 0, 0, 0, os.readlink(full).decode("utf-8", "surrogateescape"))
    if not stat.S_ISREG(found.st_mode):
        return None
    return Entry(name, found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode) & 0o777, None)


def stays_inside(path: bytes, target: bytes) -> bool:
    """Return True if a link at `path` (relative to a root) with this text stays below the root.

    `..` is allowed in front only: behind a name it could follow another link out of the root. As the parents of a link
    are real directories and every other link obeys the same rule, this text alone decides.
    """
    if target.startswith(b"/") or not target:
        return False
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    ups = next((at for at, name in enumerate(names) if name != b".."), len(names))
    return b".." not in names[ups:] and ups <= path.count(b"/")


def relative_link(root: bytes, path: bytes) -> tuple[bytes, str]:
    """Return the text that makes a link mean the same in a copy of `root`, or an empty one and the reason.

    A link that stays inside keeps its text. Any other link that resolves to something below `root`, an absolute one
    for instance, becomes a relative one. `root` must be a real path.
    """
    full = os.path.join(root, path)
    text = os.readlink(full)
    reason = unresolved(full, text)
    if reason:
        return b"", reason
    real = os.path.realpath(full)
    if not below(root, real):
        return b"", "link that leads out of the directory, to " + shown(text)
    if stays_inside(path, text):
        return text, ""
    # The path as written keeps a chain of links a chain; it is taken only where it leads to the same place.
    written = os.path.normpath(os.path.join(os.path.dirname(full), text))
    target = written if below(root, written) and os.path.realpath(written) == real else real
    return os.path.relpath(target, os.path.dirname(full)), ""


def unresolved(link: bytes, text: bytes) -> str:
    """Return why a link leads to nothing; an empty text when it leads somewhere."""
    try:
        os.stat(link)
    except OSError as err:
        known = {errno.ELOOP: "link that leads in a circle, to ", errno.ENOENT: "dangling link, to "}
        return known.get(err.errno or 0, str(err.strerror) + ": link to ") + shown(text)
    return ""


def below(root: bytes, path: bytes) -> bool:
    """Return True for `root` itself and for every path inside it."""
    return (path + b"/").startswith(root.rstrip(b"/") + b"/")


def portable_entry(root: bytes, path: bytes) -> Entry | None:
    """Return the manifest entry of what lies at `path`, with a link's text made relative where that is possible."""
    entry = entry_at(root, path)
    if entry is None or entry.link is None or stays_inside(path, encoded(entry.link)):
        return entry
    with contextlib.suppress(OSError):
        text, _ = relative_link(root, path)
        return entry._replace(link=text.decode("utf-8", "surrogateescape")) if text else entry
    return entry


def same(wanted: Entry, found: Entry | None) -> bool:
    """Whether nothing has to be sent. File systems that keep whole seconds only are compared by the second."""
    if found is None or wanted.link != found.link:
        return False
    if wanted.link is not None:
        return True
    coarse = found.mtime_ns % SECOND_NS == 0 and found.mtime_ns // SECOND_NS == wanted.mtime_ns // SECOND_NS
    on_time = coarse or wanted.mtime_ns == found.mtime_ns
    return on_time and wanted.size == found.size and wanted.mode == found.mode


def walk(root: bytes, unreadable: Callable[[bytes, OSError], None] | None = None) -> Iterator[bytes]:
    """Every file, link or other non-directory below `root`, as relative paths; the working folder left out.

    `unreadable` is called with a directory below `root` that cannot be listed; without it, the error is raised.
    """
    pending = [b""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                entries = list(found)
        except OSError as err:
            if unreadable is None or not folder:
                raise
            unreadable(folder.rstrip(b"/"), err)
            continue
        for entry in entries:
            path = folder + entry.name
            if path == PART:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(path + b"/")
            else:
                yield path


def plan(to: str, source: IO[bytes]) -> None:
    """Compare a directory with the manifest; changes nothing."""
    root = place(to)
    check_ours(root)
    manifest = take_entries(source)
    wanted = [index for index, entry in enumerate(manifest) if not same(entry, entry_at(root, encoded(entry.path)))]
    names = {encoded(entry.path) for entry in manifest}
    extra = sum(path not in names for path in walk(root)) if os.path.isdir(root) else 0
    answer({"wanted": wanted, "extra": extra})


def marker_of(root: bytes) -> bytes:
    """The file that says: this directory is ours to change. Outside of it, because it holds exactly what was sent."""
    folder = os.path.join(os.path.expanduser(b"~"), b".cloudgpu", b"trees")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, hashlib.sha256(root).hexdigest()[:32].encode("ascii"))


def check_ours(root: bytes) -> None:
    """Refuse a directory whose contents are not ours to remove."""
    home = os.path.realpath(os.path.expanduser(b"~"))
    if (home + b"/").startswith(root.rstrip(b"/") + b"/"):
        raise RefusedError("this directory holds the home directory; name one below it")
    filled = os.path.lexists(root) and not (os.path.isdir(root) and not os.listdir(root))
    if filled and not os.path.exists(marker_of(root)):
        raise RefusedError("this directory has contents that cloudgpu did not put there; name a new or empty one")


def claim(root: bytes) -> IO[bytes]:
    """Open the marker, made only for a directory that is new or empty, and wait for another transfer to end."""
    check_ours(root)
    held = open(marker_of(root), "ab")  # noqa: SIM115  # the caller holds it, and with it the lock
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def claim_alone(to: str, source: IO[bytes]) -> None:
    """Make the directory, and the mark by which a later `apply` knows it."""
    del source
    root = place(to)
    with claim(root):
        os.makedirs(root, exist_ok=True)
    answer({})


def apply(to: str, source: IO[bytes]) -> None:
    """Make the directory hold exactly the manifest: contents first, then what is too much."""
    root = place(to)
    manifest, wanted = take_entries(source), take_entries(source)
    with claim(root):
        part = os.path.join(root, PART)
        shutil.rmtree(part, ignore_errors=True)  # what a killed transfer left
        os.makedirs(part, mode=0o700)
        try:
            receive(root, wanted, source)
            prune(root, {encoded(entry.path) for entry in manifest})
        finally:
            shutil.rmtree(part, ignore_errors=True)


def receive(root: bytes, entries: Iterable[Entry], source: IO[bytes]) -> None:
    """Write each entry into the working folder, then move it to its place."""
    ready = {b""}
    temporary = os.path.join(root, PART, b"file")
    for name, size, mtime_ns, mode, link in entries:
        path = encoded(name)
        make_parents(root, path, ready)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if link is not None:
            os.symlink(encoded(link), temporary)
        else:
            write(temporary, size, source)
            os.chmod(temporary, mode)
            os.utime(temporary, ns=(mtime_ns, mtime_ns))
        full = os.path.join(root, path)
        try:
            os.replace(temporary, full)
        except IsADirectoryError:
            shutil.rmtree(full)
            os.replace(temporary, full)


def write(path: bytes, size: int, source: IO[bytes]) -> None:
    """Copy the next `size` bytes of the stream into a new file."""
    with open(path, "xb", buffering=0) as file:
        left = size - poured(source, size, file.fileno()) if size >= CHUNK_BYTES else size
        while left:
            piece = take(source, min(left, CHUNK_BYTES))
            left -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]


def poured(source: IO[bytes], size: int, file: int) -> int:
    """Move the next bytes from pipe to file inside the kernel; how many, which is none where that cannot be done."""
    peek = getattr(source, "peek", None)
    if peek is None or not hasattr(os, "splice"):
        return 0
    done, held = 0, peek()[:size]  # what has been read already comes first
    while done < len(held):
        done += os.write(file, take(source, len(held) - done))
    with contextlib.suppress(OSError):  # no pipe, or no such file system: the usual way takes the rest
        while done < size:
            moved = os.splice(source.fileno(), file, min(CHUNK_BYTES, size - done))
            if not moved:
                raise RefusedError("the transfer was cut off")
            done += moved
    return done


def make_parents(root: bytes, path: bytes, ready: set[bytes]) -> None:
    """Real directories above `path`: a link or a file that is in the way goes, or contents would land elsewhere."""
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
    """Remove what is not in the manifest, and the directories that are empty then."""
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


def listing(origin: str, source: IO[bytes]) -> None:
    """Answer the entries that match one of the patterns; a directory that matches stands for all below it.

    What matches and cannot travel is named: `[path, reason, whether contents are lost with it]`.
    """
    root = place(origin)
    if not os.path.isdir(root):
        raise RefusedError("no such directory")
    asked = take_json(source)
    patterns = [re.compile(encoded(str(pattern)), re.DOTALL) for pattern in (asked if isinstance(asked, list) else [])]
    entries: list[Entry] = []
    skipped: list[tuple[str, str, bool]] = []

    def unreadable(folder: bytes, err: OSError) -> None:
        lost = any(matches(pattern, folder) for pattern in patterns)
        skipped.append((shown(folder) + "/", "cannot be read: " + str(err.strerror), lost))

    for path in walk(root, unreadable):
        if not any(matches(pattern, path) for pattern in patterns):
            continue
        entry, reason, lost = examined(root, path)
        if entry is not None:
            entries.append(entry)
        elif reason:
            skipped.append((shown(path), reason, lost))
        if len(entries) > MOST_ENTRIES:
            raise RefusedError("more than " + str(MOST_ENTRIES) + " files match; pack them into archives")
    skipped.sort(key=lambda one: (not one[2], one[0]))
    answer({"entries": sorted(entries), "skipped": skipped[:MOST_NAMED], "unnamed": max(0, len(skipped) - MOST_NAMED)})


def shown(path: bytes) -> str:
    """A path as text that survives JSON."""
    return path.decode("utf-8", "surrogateescape")


def examined(root: bytes, path: bytes) -> tuple[Entry | None, str, bool]:
    """The entry of what lies at `path`; or why it cannot travel, and whether contents are lost with it."""
    full = os.path.join(root, path)
    try:
        mode = os.lstat(full).st_mode
        if stat.S_ISLNK(mode):
            text, reason = relative_link(root, path)
            return (None if reason else Entry(shown(path), 0, 0, 0, shown(text))), reason, False
        if stat.S_ISREG(mode) and not os.access(full, os.R_OK):
            return None, "cannot be read: Permission denied", True
        return entry_at(root, path), KINDS.get(stat.S_IFMT(mode), ""), False
    except FileNotFoundError:
        return None, "", False  # removed since its directory was read
    except OSError as err:
        return None, "cannot be read: " + str(err.strerror), True


def matches(pattern: re.Pattern[bytes], path: bytes) -> bool:
    """Whether the path, or a directory that it lies in, matches."""
    while path:
        if pattern.fullmatch(path):
            return True
        path = path.rpartition(b"/")[0]
    return False


def read(origin: str, source: IO[bytes]) -> None:
    """Send contents. A file that has shrunk is filled up with zeros, and its true size is told at the end."""
    root = place(origin)
    short: dict[int, int] = {}
    failed: dict[int, str] = {}
    for index, entry in enumerate(take_entries(source)):
        try:
            file = opened(os.path.join(root, encoded(entry.path)))
        except OSError as err:
            # Without this byte, megabytes of zeros would have to stand for a file that is not there.
            sys.stdout.buffer.write(SKIPPED)
            failed[index] = "vanished while it was fetched" if err.errno == errno.ENOENT else str(err.strerror)
            continue
        sys.stdout.buffer.write(FOLLOWS)
        with file:
            sent, problem = send(file, entry.size)
        if problem:
            failed[index] = problem
        elif sent != entry.size:
            short[index] = sent
    answer({"short": short, "failed": failed})


def opened(path: bytes) -> IO[bytes]:
    """Open a regular file for reading. What took its place meanwhile is refused: a named pipe would wait for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no longer a regular file")
    return open(handle, "rb", buffering=0)


def send(file: IO[bytes], size: int) -> tuple[int, str]:
    """Send `size` bytes for this file; returns how many of them are its own, and what stopped the reading."""
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


def widened(source: IO[bytes]) -> IO[bytes]:
    """Standard input with room for more at a time: fewer turns between who sends and who writes."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(source.fileno(), SET_PIPE_SIZE, CHUNK_BYTES)
    return source


def main(verb: str, where: str) -> int:
    """Carry out one verb; the exit code."""
    verbs = {"plan": plan, "claim": claim_alone, "apply": apply, "list": listing, "read": read}
    sys.stdout.buffer.write(MARK)
    try:
        verbs[verb](where, widened(sys.stdin.buffer))
        sys.stdout.buffer.flush()
    except (OSError, RefusedError) as err:
        text = f"{err.strerror}: {os.fsdecode(err.filename or where)}" if isinstance(err, OSError) else str(err)
        sys.stderr.buffer.write(text.encode("utf-8", "replace") + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-2], sys.argv[-1]))
