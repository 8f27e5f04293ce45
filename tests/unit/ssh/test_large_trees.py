"""Fetch and send sparse files, files that do not fit on the disk, and trees of very many files."""

import errno
import os
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.ssh.transfer import fetch, node_read, receive
from cloudgpu.ssh.transfer.fetch import fetch_tree
from cloudgpu.ssh.transfer.listing import SkippedDownload
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.ssh.transfer.node_read import FOLLOWS, PARTS_FOLLOW
from cloudgpu.ssh.transfer.node_tree import EXTENT, MARK
from cloudgpu.ssh.transfer.send import send_tree
from tests.unit.ssh.test_fetching import (
    LocalNode,
    Output,
    ScriptedNode,
    chained,
    contents,
    endless,
    fetched,
    listed,
    message,
)


@pytest.fixture(name="work")
def _work(tmp_path: Path) -> Path:
    root = tmp_path / "home" / "work"
    (root / "outputs/ckpt-100").mkdir(parents=True)
    (root / "outputs/ckpt-100/model.pt").write_text("model")
    return root


@pytest.fixture(name="to")
def _to(tmp_path: Path) -> Path:
    return tmp_path / "to"


def test_file_that_does_not_fit_remains_on_the_node_and_the_others_are_fetched(to: Path) -> None:
    big = [[f"big-{number:02}", 1 << 60, 1, 0o644, None] for number in range(30)]
    node = ScriptedNode(listed(*big, ["a", 3, 1, 0o644, None], ["b", 1, 1, 0o644, None]), contents(b"b", b"abc"))
    skipped: list[SkippedDownload] = []
    assert fetch_tree(node, "/work", [], to, skipped.append) == ["a", "b"]
    assert (to / "a").read_bytes() == b"abc"
    assert len(skipped) == 21
    assert all(one.lost for one in skipped)
    assert re.fullmatch(
        r"needs 1073741824\.0 GiB, but only .* is free on the disk that holds .*/to; it remains in /work on the node",
        skipped[0].reason,
    )
    assert skipped[-1].reason == "there is no space for 10 more files (10737418240.0 GiB)"


@pytest.mark.parametrize("full", ["write", "check"])
def test_disk_that_fills_up_keeps_the_complete_files(to: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """Another program, or the download of another node, uses the same disk."""
    write, usage = os.write, receive.shutil.disk_usage

    def failing(descriptor: int, data: bytes) -> int:
        if bytes(data[:1]) == b"x":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    if full == "write":
        monkeypatch.setattr(receive.os, "write", failing)
    else:
        frees = iter([10**9, 10**9, 10**9])
        monkeypatch.setattr(receive.shutil, "disk_usage", lambda _: usage("/")._replace(free=next(frees, 5)))
        monkeypatch.setattr(receive, "_CHECK_EVERY_BYTES", 4)
    node = ScriptedNode(
        listed(["a", 1, 1, 0o644, None], ["b", 5, 1, 0o644, None], ["c", 9, 1, 0o644, None]),
        contents(b"a", b"xxxxx", b"ccccccccc"),
    )
    skipped: list[SkippedDownload] = []
    assert fetch_tree(node, "/work", [], to, skipped.append) == ["a"]
    assert [one.path for one in skipped] == ["b", "c"]
    assert sorted(path.name for path in to.iterdir()) == ["a"]


def test_sparse_file_is_fetched_and_sent_with_its_holes(work: Path, to: Path, tmp_path: Path) -> None:
    size = 7 << 40
    with (work / "outputs/disk.img").open("wb") as file:
        for at, data in ((0, b"start"), (5 << 20, b"\1" * (3 << 20)), (size - 3, b"end")):
            file.seek(at)
            file.write(data)
    with (work / "outputs/hole").open("wb") as file:
        file.truncate(1 << 40)
    names, skipped = fetched(work, to, "outputs/")
    assert skipped == {}
    assert {"outputs/disk.img", "outputs/hole", "outputs/ckpt-100/model.pt"} <= set(names)
    home = tmp_path / "node"
    home.mkdir()
    sent = send_tree(LocalNode(home), work, files_to_send(work).files, "~/copy")
    assert sent < 5 << 20
    for copy in (to, home / "copy"):
        status = (copy / "outputs/disk.img").stat()
        assert (status.st_size, status.st_mtime_ns) == (size, (work / "outputs/disk.img").stat().st_mtime_ns)
        assert status.st_blocks * 512 < 5 << 20
        assert (copy / "outputs/hole").stat().st_size == 1 << 40
        with (copy / "outputs/disk.img").open("rb") as file:
            assert file.read(6) == b"start\0"
            file.seek((5 << 20) - 1)
            assert file.read((3 << 20) + 2) == b"\0" + b"\1" * (3 << 20) + b"\0"
            file.seek(size - 4)
            assert file.read() == b"\0end"
    assert fetched(work, to, "outputs/")[0] == names  # nothing differs


def parts(*given: tuple[int, bytes]) -> bytes:
    return PARTS_FOLLOW + b"".join(EXTENT.pack(at, len(data)) + data for at, data in given)


@pytest.mark.parametrize(
    "sent",
    [
        parts((0, b"ab"), (1, b"c")) + EXTENT.pack(0, 0),
        parts((9, b"ab")) + EXTENT.pack(0, 0),
        parts((1 << 63, b"a")) + EXTENT.pack(0, 0),
        parts((0, b"a")),
        parts() + EXTENT.pack(2, 1 << 63),
        parts() + EXTENT.pack(1 << 63, 0),
    ],
)
def test_malformed_parts_of_a_sparse_file_are_rejected(to: Path, sent: bytes) -> None:
    node = ScriptedNode(listed(["a", 10, 1, 0o644, None, 0]), Output([MARK, sent]))
    with pytest.raises(RemoteCommandError, match="malformed"):
        fetch_tree(node, "/work", [], to)
    assert list(to.iterdir()) == []


def test_file_that_the_local_file_system_cannot_store_does_not_prevent_others(to: Path) -> None:
    """A file longer than the file system allows, and a name that is too long."""
    to.mkdir()
    name = "n" * 300
    answer = Output(
        [
            MARK,
            parts((1 << 61, b"xyz")) + EXTENT.pack(0, 0),
            FOLLOWS + b"n",
            FOLLOWS + b"abc",
            message({"short": {}, "failed": {}}),
        ]
    )
    node = ScriptedNode(
        listed(["big", 1 << 61 | 3, 1, 0o644, None, 0], [name, 1, 1, 0o644, None], ["z", 3, 1, 0o644, None]), answer
    )
    skipped: list[SkippedDownload] = []
    assert fetch_tree(node, "/work", [], to, skipped.append) == ["z"]
    reasons = {one.path: one.reason.rpartition(": ")[2] for one in skipped}
    assert reasons.pop("big") in ("File too large", "Invalid argument")  # it depends on the file system
    assert reasons == {name: "File name too long"}
    assert (to / "z").read_bytes() == b"abc"


def test_long_listing_is_never_in_memory_as_a_whole() -> None:
    def messages() -> Iterator[bytes]:
        yield MARK
        for start in range(0, 20_000, 500):
            yield message({"entries": [[f"{number:0200}", 0, 0, 0, "x", 0] for number in range(start, start + 500)]})
        yield message({"entries": [], "skipped": [], "unnamed": 0})

    tracemalloc.start()
    assert sum(1 for _ in fetch._listed(ScriptedNode(Output(messages())), "/work", [], [])) == 20_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The listing has 5 MB, and 9 once it is decoded. Threads that earlier tests have left may allocate, too.
    assert most < 2_500_000


@pytest.mark.parametrize("entries", [[], [["a", 0, 0, 0, "x", 0]] * 500])
def test_listing_without_an_end_is_rejected(to: Path, entries: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_LISTING_BYTES", 1 << 20)
    answer = Output(chained([MARK], endless(message({"entries": entries}))))
    with pytest.raises(RemoteCommandError, match="malformed"):
        fetch_tree(ScriptedNode(answer), "/work", [], to)
    assert answer.closed


def test_node_sends_a_long_listing_in_several_messages(work: Path, to: Path) -> None:
    for number in range(node_read.ENTRIES_PER_MESSAGE * 2 + 1):
        (work / f"outputs/{number:05}").touch()
    (work / "outputs/disk").mkdir()
    names, _ = fetched(work, to, "outputs/[0-9]*")
    assert names == [f"outputs/{number:05}" for number in range(node_read.ENTRIES_PER_MESSAGE * 2 + 1)]


def test_symlinks_lead_to_the_moved_places(work: Path, to: Path) -> None:
    (work / "node-1/deep").mkdir(parents=True)
    (work / "node-1/deep/x").write_text("x")
    (work / "top").write_text("top")
    for path, target in {
        "latest": "node-1/deep",
        "node-1/deep/up": "../../top",
        "node-1/same": "deep/x",
        "outputs/dir": "../node-1",
        "node-1/back": "..",
    }.items():
        (work / path).symlink_to(target)

    def place(path: str) -> str:
        return f"node-0/{path}" if path.split("/", maxsplit=1)[0] == "node-1" else path

    skipped: list[SkippedDownload] = []
    node = LocalNode(work.parent)
    names = fetch_tree(node, str(work), [], to, skipped.append, place=place)
    assert skipped == []
    assert {"latest", "node-1/deep/x", "node-1/deep/up"} <= set(names)
    assert (to / "latest/x").read_text() == (to / "node-0/node-1/same").read_text() == "x"
    assert (to / "node-0/node-1/deep/up").read_text() == "top"
    assert (to / "outputs/dir").resolve() == (to / "node-0/node-1").resolve()
    assert (to / "node-0/node-1/back").resolve() == to.resolve()
    before = (to / "latest").lstat().st_ino
    assert fetch_tree(node, str(work), [], to, place=place) == names
    assert (to / "latest").lstat().st_ino == before
