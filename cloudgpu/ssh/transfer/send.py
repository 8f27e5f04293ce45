"""Send file trees and single files to a node. Only differences are sent; each file is replaced atomically."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.files import open_unbuffered
from cloudgpu.ssh.base import OnBytes, ignore_bytes
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer.node_program import (
    NOISE_BYTES,
    TransferConnection,
    ask_node,
    broken,
    counted,
    encode_message,
    failed,
    malformed_response,
    node_request,
    paced_output,
    verb_command,
)
from cloudgpu.ssh.transfer.node_read import extents, portable_entry, stored_bytes
from cloudgpu.ssh.transfer.node_tree import EXTENT, Entry, is_folder

_CHUNK_BYTES = 1 << 20
_ROUNDS = 3
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


class Contents:
    """The contents of the files in a manifest, read in order.

    Attributes:
        size_bytes: Bytes to send.
        sparse: Indices of the files whose holes are not sent.
        changed: Paths of files that differed from the manifest when they were read. The contents of files that shrank
            are padded with zeros.
        problem: Read error that ended the stream early, or None. The node then reports an interrupted transfer.
    """

    def __init__(self, source: Path, entries: Sequence[Entry]) -> None:
        self._source = source
        self._entries = entries
        stored = [_stored(source, entry) for entry in entries]
        self.sparse = [index for index, entry in enumerate(entries) if stored[index] < entry.size]
        self.size_bytes = sum(stored)
        self.changed: list[str] = []
        self.problem: OSError | None = None

    def after(self, header: bytes) -> Iterator[bytes]:
        """Yield the header and then the contents, with small files combined into chunks of about one MiB."""
        gathered = bytearray(header)
        try:
            for piece in self._pieces():
                if len(piece) >= _CHUNK_BYTES:  # yield it directly, because gathering would copy it twice
                    if gathered:
                        yield bytes(gathered)
                        gathered.clear()
                    yield piece
                    continue
                gathered += piece
                if len(gathered) >= _CHUNK_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
        except OSError as err:
            self.problem = err
            return
        yield bytes(gathered)

    def _pieces(self) -> Iterator[bytes]:
        root = os.path.realpath(os.fsencode(self._source))
        sparse = frozenset(self.sparse)
        for index, entry in enumerate(self._entries):
            if index in sparse:
                yield from self._parts(entry)
            elif entry.link is None and not is_folder(entry):
                yield from self._file(entry)
            if portable_entry(root, os.fsencode(entry.path)) != entry:
                self.changed.append(entry.path)

    def _file(self, entry: Entry) -> Iterator[bytes]:
        left = entry.size
        for piece in self._read(entry):
            left -= len(piece)
            yield piece
        while left:
            padding = bytes(min(left, _CHUNK_BYTES))
            left -= len(padding)
            yield padding

    def _parts(self, entry: Entry) -> Iterator[bytes]:
        """Yield the parts of a sparse file that are not holes, each with its offset and length."""
        with contextlib.suppress(FileNotFoundError), open_unbuffered(self._source / entry.path) as file:
            for start, length in extents(file.fileno(), entry.size):
                file.seek(start)
                offset, end = start, start + length
                while offset < end and (piece := file.read(min(end - offset, _CHUNK_BYTES))):
                    yield EXTENT.pack(offset, len(piece)) + piece
                    offset += len(piece)
        yield EXTENT.pack(0, 0)

    def _read(self, entry: Entry) -> Iterator[bytes]:
        """Yield at most the announced number of bytes, or nothing if the file no longer exists."""
        try:
            file = open_unbuffered(self._source / entry.path)
        except FileNotFoundError:
            return
        with file:
            left = entry.size
            while left and (piece := file.read(min(left, _CHUNK_BYTES))):
                left -= len(piece)
                yield piece


def _stored(source: Path, entry: Entry) -> int:
    """Return the bytes to send of a file: its size without holes, if it still exists."""
    try:
        return entry.size if entry.link is not None else min(entry.size, stored_bytes((source / entry.path).stat()))
    except OSError:
        return entry.size


def put_bytes(host: TransferConnection, content: bytes, path: str, *, mode: int) -> None:
    """Write one file on the node. The file is renamed into place only after every byte has been received."""
    command = RemoteCommand("sh", "-c", _PUT, "sh", path, str(len(content)), f"{mode:o}")
    result = host.try_run(command, stdin=content)
    if not result.ok:
        raise failed(host, f"cannot write {path}", result.exit_code, result.tail())


def send_tree(
    host: TransferConnection, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes
) -> int:
    """Make the remote directory contain exactly these files; return the number of content bytes sent.

    `files` also contains the empty directories, whose paths end with a slash.

    Files that change while they are being read are sent again, at most twice.
    """
    sent = 0
    changed: list[str] = []
    for _ in range(_ROUNDS):
        manifest = manifest_of(source, files)
        changed_entries, extra = _plan(host, manifest, to)
        if not changed_entries and not extra:
            return sent
        contents = Contents(source, changed_entries)
        header = encode_message(manifest) + encode_message(changed_entries) + encode_message(contents.sparse)
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
    """Create a remote directory or adopt an empty one, so that `send_tree` may change its contents later."""
    ask_node(host, verb_command("claim", to), b"", f"cannot write {to}")


def manifest_of(source: Path, files: Sequence[str]) -> list[Entry]:
    """Return the manifest of these files in `source`, without files that no longer exist."""
    root = os.path.realpath(os.fsencode(source))
    entries = (portable_entry(root, os.fsencode(name)) for name in files)
    return [entry for entry in entries if entry is not None]  # omit deleted files


def _plan(host: TransferConnection, manifest: Sequence[Entry], to: str) -> tuple[list[Entry], int]:
    """Return the entries to send and the number of extra files on the node."""
    problem = f"cannot compare {to}"
    match ask_node(host, verb_command("plan", to), encode_message(manifest), problem):
        case {"wanted": [*indices], "extra": int(extra)} if all(
            type(index) is int and index in range(len(manifest)) for index in indices
        ):
            return [manifest[index] for index in indices], extra
        case _:
            raise malformed_response(host, problem)


def _apply(host: TransferConnection, to: str, header: bytes, contents: Contents, on_bytes: OnBytes) -> None:
    pieces = counted(contents.after(node_request(header)), contents.size_bytes, on_bytes)
    running = host.start(verb_command("apply", to), pieces)
    output_bytes = 0
    for piece in paced_output(running):
        output_bytes += len(piece)
        if output_bytes > NOISE_BYTES:
            running.close()
            raise malformed_response(host, f"cannot write {to}")
    if contents.problem is not None:
        raise StateError(
            f"cannot read {contents.problem.filename}: {contents.problem.strerror}",
            hint="make the file readable, or list it in .cloudgpuignore",
        ) from contents.problem
    if running.exit_code != 0:
        raise broken(host, f"cannot write {to}", running)
