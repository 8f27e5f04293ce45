"""Fuzz targets for transferred files: what nodes answer, which files are left out, and patterns of outputs."""

import contextlib
import io
import re
import struct
from collections.abc import Iterator
from typing import Any

from cloudgpu.errors import CloudGpuError
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer import fetch, git_files, glob, node_program, send
from cloudgpu.ssh.transfer.listing import SkippedDownload
from cloudgpu.ssh.transfer.node_tree import MARK, Entry, RefusedError, take_entries
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, spoiled, words
from tests.unit.fuzz.target import Target
from tests.unit.fuzz.targets_home import NODE

_ENTRY = Entry("a", 5, 2, 420, None)
_LISTING = {"entries": [["a", 5, 2, 420, None, 5]], "skipped": [["b", "a socket", False]], "unnamed": 0}


class _Transfer:
    """A connection on which every command answers with the example."""

    node, exit_code, stderr = NODE, 0, bytearray()

    def __init__(self, data: bytes) -> None:
        self._data = data

    def start(self, _command: Any, _stdin: Any = b"") -> "_Transfer":
        return self

    def output(self, _stalled_s: float | None = None, _whole_s: float | None = None) -> Iterator[bytes]:
        return iter([MARK, struct.pack(">Q", len(self._data)) + self._data])

    def count(self, _size: int) -> None:
        return

    def close(self) -> None:
        return


def _transfer_answer(data: bytes) -> None:
    host: Any = _Transfer(data)
    answer = node_program.ask_node(host, RemoteCommand("true"), b"", "cannot read")
    for read in (_transfer_listing, _transfer_plan, _transfer_report):
        with contextlib.suppress(CloudGpuError):  # one document is an answer to one of the three questions only
            read(host, answer)


def _transfer_listing(host: Any, answer: Any) -> None:
    del answer
    skipped: list[SkippedDownload] = []
    for listed in fetch._listed(host, "/a", [], skipped):
        conforms(Entry, listed.entry)
        conforms(int, listed.stored)
    conforms(list[SkippedDownload], skipped)


def _transfer_plan(host: Any, answer: Any) -> None:
    del answer
    wanted, extra = send._plan(host, [_ENTRY], "/a")
    conforms(int, extra)
    assert all(entry == _ENTRY for entry in wanted)


def _transfer_report(_host: Any, answer: Any) -> None:
    for entry, _said in fetch._numbered([_ENTRY], answer):
        assert entry == _ENTRY


def _entries(data: bytes) -> None:
    for entry in take_entries(io.BytesIO(struct.pack(">Q", len(data)) + data)):
        conforms(type(entry), entry)


def _ignored(content: bytes) -> None:
    rules = git_files.parse_rules(content)
    str(git_files.decide(b"a/b/c.txt", directory=False, own=[rules], git=[]))


def _index_entry(name: bytes, *, compressed: bool) -> bytes:
    fixed = struct.pack(">24xL12x20xH", 0o100644, len(name)) + (b"\0" if compressed else b"")
    return fixed + name + b"\0" * (1 if compressed else 8 - (len(fixed) + len(name)) % 8)


def _index(version: int) -> bytes:
    entries = [_index_entry(name, compressed=version > 3) for name in (b"a/b.txt", b"c.py")]
    return struct.pack(">4sLL", b"DIRC", version, len(entries)) + b"".join(entries) + b"TREE" + bytes(4)


def _tracked(content: bytes) -> None:
    for hash_bytes in (20, 32):
        with contextlib.suppress(git_files.UnreadableIndexError):
            conforms(frozenset[bytes], git_files.tracked_names(content, hash_bytes))


def _git_settings(content: bytes) -> None:
    conforms(dict[str, str], git_files.parse_settings(content.decode(errors="replace")))


def _glob(data: bytes) -> None:
    found = glob.translate(data)
    if found is not None:
        re.compile(found).fullmatch(b"a/b/c.txt")


def _pattern(text: str) -> None:
    glob.path_matcher([text])("a/b.txt")


TARGETS = (
    Target("transfer answer", files(_LISTING, {"wanted": [0], "extra": 0}, {"0": 5}), _transfer_answer),
    Target("transfer entries", files([["a", 1, 2, 420, None], ["b", 0, 0, 0, "a"]]), _entries, (RefusedError,)),
    Target("ignore file", spoiled("*.pyc\n!keep/\n/build/**\n[a-z]?.txt\n"), _ignored),
    Target("git index", spoiled(_index(2), _index(4)), _tracked),
    Target("git settings", spoiled('[core]\n\texcludesFile = ~/mine ; a\n[a "b"]\n\tc\n'), _git_settings),
    Target("glob", spoiled("a/**/[!b-c]?.txt"), _glob),
    Target("output pattern", words("checkpoints/**", "*.pt"), _pattern),
)
