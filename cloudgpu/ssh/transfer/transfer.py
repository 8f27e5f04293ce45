"""Transfer file trees to and from a node: only differences are sent, and each file is replaced atomically."""

import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from cloudgpu.errors import RemoteCommandError, StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import unwritable_error
from cloudgpu.ssh.base import COMMAND_S, OnBytes, Result, ignore_bytes
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.failure_text import node_label
from cloudgpu.ssh.transfer import node_read, node_tree
from cloudgpu.ssh.transfer.contents import Contents
from cloudgpu.ssh.transfer.node_read import MOST_ENTRIES, portable_entry
from cloudgpu.ssh.transfer.node_tree import MARK, Entry, entry_at, same
from cloudgpu.ssh.transfer.patterns import glob_regexes
from cloudgpu.ssh.transfer.receive import (
    DISK_FULL,
    DownloadDirectory,
    ListedEntry,
    OnSkipped,
    PlaceOf,
    ReceiveStream,
    SkippedDownload,
    placed_entry,
    reserve_bytes,
    same_place,
    validate_listed,
    validate_skipped,
)
from cloudgpu.text import plural, printable, size_text

_ROUNDS = 3
_NOT_FOUND = 127
_NOISE_BYTES: Final = 16 << 20
"""Maximum number of bytes that a login shell may print before the response. If it prints more, the transfer fails."""
_ANSWER_BYTES: Final = 256 << 20
"""Maximum size of a response in bytes: enough for about a million files, but a hostile node cannot exhaust memory."""
_LISTING_BYTES: Final = 1 << 30
_LISTING_MESSAGE_BYTES: Final = 32 << 20
"""Maximum sizes in bytes of a listing, and of each of its messages, which are decoded one after the other."""
_LISTING_S: Final = 1800.0
"""Time limit for a listing, in seconds."""
_STALLED_S: Final = 300.0
"""Seconds in which a transfer must move at least `LEAST_BYTES_PER_S` bytes per second."""
_READ_AT_ONCE: Final = 20_000
"""Maximum number of files that one command downloads, because both sides hold the list of them in memory."""
_MOST_NAMED: Final = 20
"""Maximum number of files that are named if they do not fit on the disk."""
_BLOCK: Final = 4096
_DIGITS: Final = 10
_REASON_LENGTH: Final = 500
_SENT_FROM: Final = b"# -- sent from here on --\n"
_GUARD: Final = b'if __name__ == "__main__":'


def _program() -> bytes:
    """Join the halves of the node's program. The entry point, at the end of the first half, must come last."""
    first, guard, start = Path(node_tree.__file__).read_bytes().partition(_GUARD)
    second = Path(node_read.__file__).read_bytes().partition(_SENT_FROM)[2]
    return b"\n".join((first, second, guard + start))


_PROGRAM = _program()
_LOADER = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'node_tree', 'exec'))"
_PUT = """
case "$1" in \\~/*) to=$HOME/${1#\\~/} ;; *) to=$1 ;; esac
case "$to" in */*) mkdir -p -- "${to%/*}/" || exit 1 ;; esac
part=$to.part.$$
umask 077
trap 'rm -f -- "$part"' EXIT
cat > "$part" || exit 1
[ "$(wc -c < "$part")" -eq "$2" ] || { echo "the transfer was interrupted" >&2; exit 1; }
chmod "$3" "$part" && mv -f -- "$part" "$to"
"""
_GET = """
case "$1" in \\~/*) from=$HOME/${1#\\~/} ;; *) from=$1 ;; esac
printf '\\036cloudgpu\\036'
exec cat -- "$from"
"""


class StartedCommand(Protocol):
    """A running command whose output is read in chunks of bytes."""

    stderr: bytearray

    @property
    def exit_code(self) -> int:
        """Exit code, valid once all output has been read."""

    def output(self, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield standard output in chunks."""

    def count(self, size: int) -> None:
        """Count transferred bytes, which restart the time limit of `output` when they are enough."""

    def close(self) -> None:
        """Stop reading."""


class TransferConnection(Protocol):
    """The part of a connection's interface that a transfer uses."""

    node: Node

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and wait for it."""

    def start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes] = b"") -> StartedCommand:
        """Start a command."""


def _output(running: StartedCommand) -> Iterator[bytes]:
    """Yield the output of a transfer. The transfer fails if it stops making progress."""
    for piece in running.output(_STALLED_S):
        yield piece
        running.count(len(piece))


def _counted(pieces: Iterable[bytes], total: int, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield the pieces, and report their size. They include a few kilobytes beside the contents."""
    done = 0
    for piece in pieces:
        yield piece
        done = min(done + len(piece), total)
        on_bytes(done, total)


def put_bytes(host: TransferConnection, content: bytes, path: str, *, mode: int) -> None:
    """Write one file on the node. The file is renamed into place only after every byte has been received.

    Raises:
        RemoteCommandError: The remote file cannot be written.
    """
    command = RemoteCommand("sh", "-c", _PUT, "sh", path, str(len(content)), f"{mode:o}")
    result = host.try_run(command, stdin=content)
    if not result.ok:
        raise _failed(host, f"cannot write {path}", result.exit_code, result.tail())


def get_file(host: TransferConnection, path: str, to: Path) -> None:
    """Download one file; `to` is written completely or not at all.

    Raises:
        RemoteCommandError: The remote file cannot be read.
        StateError: The local file cannot be written.
    """
    running = host.start(RemoteCommand("sh", "-c", _GET, "sh", path))
    try:
        with DownloadDirectory(to.parent) as landing:
            arriving = ReceiveStream(_output(running))
            arriving.skip_past(MARK, within=_NOISE_BYTES)
            landing.receive_all(arriving.pieces())
            if running.exit_code != 0:
                raise _broken(host, f"cannot read {path}", running)
            landing.place(to.name)
    except OSError as err:
        raise unwritable_error(to, err) from err


def send_tree(
    host: TransferConnection, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes
) -> int:
    """Make the remote directory contain exactly these files; return the number of content bytes sent.

    Files that change while they are being read are sent again, at most twice.

    Raises:
        StateError: A local file cannot be read, or keeps changing.
        RemoteCommandError: A remote file cannot be written.
    """
    sent = 0
    changed: list[str] = []
    for _ in range(_ROUNDS):
        manifest = manifest_of(source, files)
        changed_entries, extra = _plan(host, manifest, to)
        if not changed_entries and not extra:
            return sent
        contents = Contents(source, changed_entries)
        header = _message(manifest) + _message(changed_entries) + _message(contents.sparse)
        _apply(host, to, header, contents, on_bytes)
        sent += contents.size_bytes
        changed = contents.changed
        if not changed:
            return sent
    raise StateError(
        f"{source} keeps changing while it is being sent: {', '.join(changed[:3])}",
        hint="stop the program that writes to this directory, or list the files in .cloudgpuignore",
    )


def claim_tree(host: TransferConnection, to: str) -> None:
    """Create a remote directory or adopt an empty one, so that `send_tree` may change its contents later.

    Raises:
        RemoteCommandError: The directory has contents that cloudgpu did not put there, or cannot be created.
    """
    _ask(host, _command("claim", to), b"", f"cannot write {to}")


def fetch_tree(
    host: TransferConnection,
    source: str,
    patterns: Sequence[str],
    to: Path,
    on_skipped: OnSkipped | None = None,
    on_bytes: OnBytes = ignore_bytes,
    *,
    place: PlaceOf = same_place,
) -> list[str]:
    """Download the matching files that are missing or different in `to`. Return the paths of all matching files.

    Patterns are globs for whole paths below `source`, and the returned paths are relative to `source`. A matching
    directory includes everything below it, and an empty list of patterns matches everything. Symlinks within `source`
    become relative. Small files come first, so that a large one does not delay or prevent them. Files that cannot be
    downloaded (a symlink that points elsewhere, a socket, an unreadable file, a file that does not fit on the disk) are
    passed to `on_skipped` and not returned. The paths that the node sends are not trusted: a path outside `to` is an
    error.

    Args:
        host: Connection to the node.
        source: Directory on the node.
        patterns: Globs.
        to: Local directory.
        on_skipped: Called for each file that cannot be downloaded.
        on_bytes: Called with the progress.
        place: Returns the path below `to` of a path below `source`.

    Raises:
        UsageError: A pattern is not a valid glob.
        StateError: A local file cannot be written, or the node sent a path outside `to`.
        RemoteCommandError: A remote file cannot be read.
    """
    root = os.fsencode(to)
    names: list[str] = []
    missing: list[ListedEntry] = []
    skipped: list[SkippedDownload] = []
    for listed in _listed(host, source, patterns, skipped):
        names.append(listed.entry.path)
        local = placed_entry(listed.entry, place)
        if not same(local, entry_at(root, os.fsencode(local.path))):
            missing.append(listed)
    download = _Download(host, source, to, place)
    try:
        if missing:
            skipped += download.receive(missing, on_bytes)
    except OSError as err:
        raise unwritable_error(to, err) from err
    if on_skipped is not None:
        for skip in skipped:
            on_skipped(skip)
    lost = {skip.path for skip in skipped} | {item.entry.path for item in download.too_large}
    return sorted(name for name in names if name not in lost)


def _listed(
    host: TransferConnection, source: str, patterns: Sequence[str], skipped: list[SkippedDownload]
) -> Iterator[ListedEntry]:
    """Yield the validated entries of a node's listing; add the files that the node cannot send to `skipped`."""
    problem, who = f"cannot list {source}", node_label(host.node)
    running = host.start(_command("list", source), _PROGRAM + _message(glob_regexes(patterns)))
    arriving = ReceiveStream(running.output(_LISTING_S))
    count = 0
    for message in _listing_messages(arriving):
        match message:
            case {"entries": [*entries], **rest} if count + len(entries) <= MOST_ENTRIES:
                count += len(entries)
                yield from (validate_listed(who, fields) for fields in entries)
            case _:
                break
        match rest:
            case {"skipped": [*unsendable], "unnamed": int(unnamed)} if arriving.ended() and running.exit_code == 0:
                skipped += [validate_skipped(who, fields) for fields in unsendable]
                if unnamed > 0:
                    skipped.append(SkippedDownload("", f"{unnamed} more paths cannot be downloaded", lost=False))
                return
    raise _unfinished(host, arriving, running, problem)


def _listing_messages(arriving: ReceiveStream) -> Iterator[object]:
    """Yield the messages of a listing until one is malformed, or the listing is too long."""
    left = _LISTING_BYTES
    if not arriving.skip_past(MARK, within=_NOISE_BYTES):
        return
    while (text := arriving.message(min(left, _LISTING_MESSAGE_BYTES))) is not None:
        left -= len(text)
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            return


def _unfinished(
    host: TransferConnection, arriving: ReceiveStream, running: StartedCommand, problem: str
) -> RemoteCommandError:
    """Return the error for a response that ended early or is malformed, and stop reading it."""
    if arriving.ended() and running.exit_code != 0:
        return _broken(host, problem, running)
    running.close()
    return _malformed_response(host, problem)


def manifest_of(source: Path, files: Sequence[str]) -> list[Entry]:
    """Return the manifest of these files in `source`, without files that no longer exist."""
    root = os.path.realpath(os.fsencode(source))
    entries = (portable_entry(root, os.fsencode(name)) for name in files)
    return [entry for entry in entries if entry is not None]  # omit deleted files


def _plan(host: TransferConnection, manifest: Sequence[Entry], to: str) -> tuple[list[Entry], int]:
    """Return the entries to send and the number of extra files on the node."""
    problem = f"cannot compare {to}"
    match _ask(host, _command("plan", to), _message(manifest), problem):
        case {"wanted": [*indices], "extra": int(extra)} if all(
            type(index) is int and index in range(len(manifest)) for index in indices
        ):
            return [manifest[index] for index in indices], extra
        case _:
            raise _malformed_response(host, problem)


def _ask(host: TransferConnection, command: RemoteCommand, question: bytes, problem: str) -> object:
    """Run a verb that returns one message, and return the message."""
    running = host.start(command, _PROGRAM + question)
    arriving = ReceiveStream(_output(running))
    return _answer(host, arriving, running, problem)


def _answer(
    host: TransferConnection, arriving: ReceiveStream, running: StartedCommand, problem: str, *, marked: bool = False
) -> object:
    """Read the final message of a response and nothing after it, because a hostile node may never stop sending."""
    has_mark = marked or arriving.skip_past(MARK, within=_NOISE_BYTES)
    text = arriving.message(_ANSWER_BYTES) if has_mark else None
    if not arriving.ended():
        running.close()
        raise _malformed_response(host, problem)
    if running.exit_code != 0:
        raise _broken(host, problem, running)
    try:
        return json.loads(text or b"")
    except (ValueError, RecursionError) as err:
        raise _malformed_response(host, problem) from err


def _apply(host: TransferConnection, to: str, header: bytes, contents: Contents, on_bytes: OnBytes) -> None:
    pieces = _counted(contents.after(_PROGRAM + header), contents.size_bytes, on_bytes)
    running = host.start(_command("apply", to), pieces)
    output_bytes = 0
    for piece in _output(running):
        output_bytes += len(piece)
        if output_bytes > _NOISE_BYTES:
            running.close()
            raise _malformed_response(host, f"cannot write {to}")
    if contents.problem is not None:
        raise StateError(
            f"cannot read {contents.problem.filename}: {contents.problem.strerror}",
            hint="make the file readable, or list it in .cloudgpuignore",
        ) from contents.problem
    if running.exit_code != 0:
        raise _broken(host, f"cannot write {to}", running)


class _Download:
    """The download of listed entries into a directory."""

    def __init__(self, host: TransferConnection, source: str, to: Path, place: PlaceOf) -> None:
        self._host = host
        self._source = source
        self._to = to
        self._place = place
        self._problem = f"cannot read {source}"
        self.too_large: Sequence[ListedEntry] = ()
        """Files that do not fit on the disk."""

    def receive(self, missing: Sequence[ListedEntry], on_bytes: OnBytes) -> list[SkippedDownload]:
        """Receive the files, small ones first, and then create the symlinks. Return what could not be downloaded.

        A file that does not fit on the disk remains on the node, and so do larger ones.
        """
        self._to.mkdir(parents=True, exist_ok=True)
        files = sorted((item for item in missing if item.entry.link is None), key=_small_first)
        fitting = self._fitting(files)
        total = sum(item.stored for item in files[:fitting])
        skipped: list[SkippedDownload] = []
        received = done = 0
        try:
            while received < fitting:
                batch = files[received : min(received + _READ_AT_ONCE, fitting)]
                skipped += self._receive_batch(batch, done, total, on_bytes)
                received += len(batch)
                done += sum(item.stored for item in batch)
        except _DiskFullError as err:
            received += err.received
        links = [item.entry for item in missing if item.entry.link is not None]
        with DownloadDirectory(self._to) as landing:
            for entry in links:
                landing.link(placed_entry(entry, self._place))
            skipped += self._unstorable(landing, links)
        self.too_large = files[received:]
        return skipped + self._named_too_large()

    def _fitting(self, files: Sequence[ListedEntry]) -> int:
        """Return how many of the files, in their order, fit on the disk."""
        free = shutil.disk_usage(self._to).free - reserve_bytes(self._to)
        for count, item in enumerate(files):
            free -= _cost(item)
            if free < 0:
                return count
        return len(files)

    def _named_too_large(self) -> list[SkippedDownload]:
        """Describe the files that do not fit on the disk."""
        files = self.too_large
        free = size_text(shutil.disk_usage(self._to).free)
        where = f"only {free} is free on the disk that holds {self._to}; it remains in {self._source} on the node"
        named = [
            SkippedDownload(item.entry.path, f"needs {size_text(item.stored)}, but {where}", lost=True)
            for item in files[:_MOST_NAMED]
        ]
        others = files[_MOST_NAMED:]
        if others:
            size = size_text(sum(item.stored for item in others))
            named.append(SkippedDownload("", f"{plural(len(others), 'more file')} ({size}) do not fit", lost=True))
        return named

    def _receive_batch(
        self, batch: Sequence[ListedEntry], done: int, total: int, on_bytes: OnBytes
    ) -> list[SkippedDownload]:
        """Receive the contents of some files, and move each complete file into place.

        Returns the files that the node could not send although it had listed them, and those that cannot be stored.

        Raises:
            _DiskFullError: The disk is full, although the files were to fit.
        """
        files = [item.entry for item in batch]
        running = self._host.start(_command("read", self._source), _PROGRAM + _message(files))
        with DownloadDirectory(self._to) as landing:
            counted = _counted(_output(running), sum(item.stored for item in batch), _shifted(on_bytes, done, total))
            arriving = ReceiveStream(counted)
            marked = arriving.skip_past(MARK, within=_NOISE_BYTES)
            if not marked or not self._receive_files(landing, files, arriving, running):
                raise _unfinished(self._host, arriving, running, self._problem)
            trailer = _answer(self._host, arriving, running, self._problem, marked=True)
            report = trailer if isinstance(trailer, dict) else {}
            local = [placed_entry(entry, self._place) for entry in files]
            _cut(landing, local, report.get("short"))
            return [*self._unstorable(landing, files), *_unsent(landing, files, local, report.get("failed"))]

    def _receive_files(
        self, landing: DownloadDirectory, files: Sequence[Entry], arriving: ReceiveStream, running: StartedCommand
    ) -> bool:
        """Receive the files one after the other. Return False if the stream ends early or is malformed."""
        for index, entry in enumerate(files):
            try:
                if not landing.receive(placed_entry(entry, self._place), arriving):
                    return False
            except OSError as err:
                if err.errno not in DISK_FULL:
                    raise
                running.close()
                raise _DiskFullError(index) from err
        return True

    def _unstorable(self, landing: DownloadDirectory, entries: Sequence[Entry]) -> list[SkippedDownload]:
        """Describe the entries that the local file system cannot store."""
        return [
            SkippedDownload(entry.path, f"cannot be written to {self._to}: {reason}", lost=True)
            for entry in entries
            if (reason := landing.unstorable.get(self._place(entry.path)))
        ]


class _DiskFullError(Exception):
    """The local disk is full. `received` is the number of files of the batch that were received before."""

    def __init__(self, received: int) -> None:
        super().__init__()
        self.received = received


def _cost(item: ListedEntry) -> int:
    """Return the disk space that a file needs."""
    return -(-item.stored // _BLOCK) * _BLOCK


def _small_first(item: ListedEntry) -> tuple[int, str]:
    return item.stored, item.entry.path


def _shifted(on_bytes: OnBytes, before: int, total: int) -> OnBytes:
    """Return a callback for a part of a transfer."""
    return lambda done, _: on_bytes(min(before + done, total), total)


def _numbered(files: Sequence[Entry], report: object) -> Iterator[tuple[Entry, Any]]:
    """Yield each file in a node's report with its value. The report identifies files by index; skip invalid indices."""
    for index, value in report.items() if isinstance(report, dict) else ():
        if index.isdecimal() and index.isascii() and len(index) < _DIGITS and int(index) < len(files):
            yield files[int(index)], value


def _cut(landing: DownloadDirectory, files: Sequence[Entry], short: object) -> None:
    """Truncate the files that became shorter on the node."""
    for entry, size in _numbered(files, short):
        if type(size) is int and 0 <= size <= entry.size:
            landing.cut(entry, size)


def _unsent(
    landing: DownloadDirectory, files: Sequence[Entry], local: Sequence[Entry], failed: object
) -> list[SkippedDownload]:
    """Remove the received parts of files that the node could not read completely, and return these files."""
    unsent = []
    for (entry, reason), (received, _) in zip(_numbered(files, failed), _numbered(local, failed), strict=True):
        landing.drop(received)
        unsent.append(SkippedDownload(entry.path, f"cannot be read: {reason}"[:_REASON_LENGTH], lost=True))
    return unsent


def _malformed_response(host: TransferConnection, problem: str) -> RemoteCommandError:
    return RemoteCommandError(
        f"{node_label(host.node)}: {problem}: the node's response is malformed",
        hint="check what the node's login shell runs and prints: `cloudgpu ssh`",
    )


def _command(verb: str, where: str) -> RemoteCommand:
    """Return the command for a verb. The program is sent on stdin, to keep messages and process lists readable."""
    return RemoteCommand("python3", "-I", "-c", _LOADER, str(len(_PROGRAM)), verb, where)


def _message(value: Sequence[object]) -> bytes:
    text = json.dumps(value).encode("ascii")
    return struct.pack(">Q", len(text)) + text


def _broken(host: TransferConnection, problem: str, running: StartedCommand) -> RemoteCommandError:
    tail = bytes(running.stderr).decode("utf-8", "replace").strip().splitlines()[-10:]
    return _failed(host, problem, running.exit_code, tail)


def _failed(host: TransferConnection, problem: str, exit_code: int, tail: Sequence[str]) -> RemoteCommandError:
    hint = "install python3 (3.8 or newer) on the node's PATH" if exit_code == _NOT_FOUND else ""
    tail = [printable(line)[:_REASON_LENGTH] for line in tail]
    because = "; ".join(tail) or f"exit code {exit_code}"
    return RemoteCommandError(f"{node_label(host.node)}: {problem}: {because}", tail=tail, hint=hint)
