"""Stream the contents of local files, each with exactly the announced length, without the holes of sparse files."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudgpu.files import open_unbuffered
from cloudgpu.ssh.transfer.node_read import extents, portable_entry, stored_bytes
from cloudgpu.ssh.transfer.node_tree import EXTENT, Entry, is_folder

_CHUNK_BYTES = 1 << 20


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
