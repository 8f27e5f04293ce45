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
from cloudgpu.ssh.transfer.node_read import portable_entry
from cloudgpu.ssh.transfer.node_tree import MARK, Entry, entry_at, is_folder, same
from cloudgpu.ssh.transfer.patterns import glob_regexes
from cloudgpu.ssh.transfer.receive import (
    DownloadDirectory,
    OnSkipped,
    ReceiveStream,
    SkippedDownload,
    validate_entry,
    validate_skipped,
)
from cloudgpu.text import printable, size_text

_ROUNDS = 3
_NOT_FOUND = 127
_NOISE_BYTES: Final = 16 << 20
"""Maximum number of bytes that a login shell may print before the response. If it prints more, the transfer fails."""
_ANSWER_BYTES: Final = 256 << 20
"""Maximum size of a response in bytes: enough for about a million files, but a hostile node cannot exhaust memory."""
_STALLED_S: Final = 300.0
"""Maximum time, in seconds, for which the node may neither accept nor send a byte during a transfer."""
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

    def renew(self) -> None:
        """Restart the time limit of `output`."""

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
        running.renew()


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

    `files` also contains the empty directories, whose paths end with a slash.

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
        _apply(host, to, _message(manifest) + _message(changed_entries), contents, on_bytes)
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
) -> list[str]:
    """Download the matching files that are missing or different in `to`. Return the paths of all matching files.

    Patterns are globs for whole paths below `source`, and the returned paths are relative to `source`. A matching
    directory includes everything below it, and an empty list of patterns matches everything. Empty directories that
    match are created, but not returned. Symlinks within `source` become relative. Files that cannot be downloaded (a
    symlink that points elsewhere, a socket, an unreadable file) are passed to `on_skipped` and not returned. The paths
    that the node sends are not trusted: a path outside `to` is an error.

    Raises:
        UsageError: A pattern is not a valid glob.
        StateError: A local file cannot be written, or the node sent a path outside `to`.
        RemoteCommandError: A remote file cannot be read.
    """
    problem = f"cannot list {source}"
    answer = _ask(host, _command("list", source), _message(glob_regexes(patterns)), problem)
    entries, skipped = _listed(host, answer, problem)
    try:
        root = os.fsencode(to)
        missing = [entry for entry in entries if not same(entry, entry_at(root, os.fsencode(entry.path)))]
        if missing:
            skipped += _receive(host, source, missing, to, on_bytes)
    except OSError as err:
        raise unwritable_error(to, err) from err
    if on_skipped is not None:
        for skip in skipped:
            on_skipped(skip)
    lost = {skip.path for skip in skipped}
    return [entry.path for entry in entries if entry.path not in lost and not is_folder(entry)]


def _listed(host: TransferConnection, answer: object, problem: str) -> tuple[list[Entry], list[SkippedDownload]]:
    """Validate a node's listing; return its entries and the files that the node cannot send."""
    who = node_label(host.node)
    match answer:
        case {"entries": [*entries], "skipped": [*skipped], "unnamed": int(unnamed)}:
            named = [validate_skipped(who, fields) for fields in skipped]
            more = (
                [SkippedDownload("", f"{unnamed} more paths cannot be downloaded", lost=False)] if unnamed > 0 else []
            )
            return [validate_entry(who, fields) for fields in entries], named + more
        case _:
            raise _malformed_response(host, problem)


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


def _receive(
    host: TransferConnection, source: str, entries: Sequence[Entry], to: Path, on_bytes: OnBytes
) -> list[SkippedDownload]:
    """Receive the contents and move each complete file into place, then create the symlinks.

    Returns the files that the node could not send although it had listed them.
    """
    files = [entry for entry in entries if entry.link is None and not is_folder(entry)]
    problem = f"cannot read {source}"
    _require_space(to, files)
    running = host.start(_command("read", source), _PROGRAM + _message(files))
    with DownloadDirectory(to) as landing:
        total = sum(entry.size for entry in files)
        arriving = ReceiveStream(_counted(_output(running), total, on_bytes))
        marked = arriving.skip_past(MARK, within=_NOISE_BYTES)
        if not marked or not all(landing.receive(entry, arriving) for entry in files):
            if arriving.ended():
                raise _broken(host, problem, running)
            running.close()
            raise _malformed_response(host, problem)
        trailer = _answer(host, arriving, running, problem, marked=True)
        report = trailer if isinstance(trailer, dict) else {}
        _cut(landing, files, report.get("short"))
        for entry in entries:
            if is_folder(entry):
                landing.make_folder(entry)
            elif entry.link is not None:
                landing.link(entry)
        return _unsent(landing, files, report.get("failed"))


def _require_space(to: Path, files: Sequence[Entry]) -> None:
    """Check the free disk space before the download starts.

    Raises:
        StateError: The announced files do not fit.
    """
    required = sum(entry.size for entry in files)
    to.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(to).free
    if required > free:
        room = f"{size_text(free)} is free and {size_text(required)} is required"
        message = f"not enough space on the disk that holds {to}: {room}"
        raise StateError(message, hint="free some space on that disk, or list fewer files in the recipe's `outputs`")


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


def _unsent(landing: DownloadDirectory, files: Sequence[Entry], failed: object) -> list[SkippedDownload]:
    """Remove the received parts of files that the node could not read completely, and return these files."""
    unsent = []
    for entry, reason in _numbered(files, failed):
        landing.drop(entry)
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
