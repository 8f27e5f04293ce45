"""Downloads from a hostile node never leave the download directory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import StateError
from cloudgpu.ssh.transfer.listing import validate_entry
from cloudgpu.ssh.transfer.local_tree import stays_inside
from cloudgpu.ssh.transfer.node_read import FOLLOWS, SKIPPED
from cloudgpu.ssh.transfer.node_tree import Entry
from cloudgpu.ssh.transfer.receive import DownloadDirectory, ReceiveStream


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "..", ".", "", "a//b", "a/./b", "a/", "/", "a\0b", "a/.."]
)
def test_paths_outside_the_download_directory_are_rejected(path: str) -> None:
    with pytest.raises(StateError, match="outside the download directory"):
        validate_entry("node 3", [path, 1, 1, 0o644, None])


@pytest.mark.parametrize(
    ("path", "link"),
    [("l", "/etc"), ("l", ".."), ("a/l", "../.."), ("l", "a/../.."), ("l", "a/../b"), ("l", ""), ("a/l", "../../a")],
)
def test_symlinks_outside_the_download_directory_are_rejected(path: str, link: str) -> None:
    with pytest.raises(StateError, match="outside the download directory"):
        validate_entry("node 3", [path, 0, 0, 0, link])


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "x",
        ["a", 1, 1, 1],
        ["a", -1, 1, 1, None],
        ["a", "1", 1, 1, None],
        [1, 1, 1, 1, None],
        ["a", 1, 1, 1, 5],
    ],
)
def test_malformed_file_list_entries_are_rejected(fields: object) -> None:
    with pytest.raises(StateError, match="node 3 sent a malformed file list"):
        validate_entry("node 3", fields)


def test_setuid_and_setgid_bits_are_removed() -> None:
    assert validate_entry("node 3", ["a", 1, 1, 0o6755, None]).mode == 0o755


names = st.sampled_from(["a", "b", "..", ".", "c"])


@given(
    made=st.lists(
        st.tuples(st.lists(names, min_size=1, max_size=3), st.lists(names, min_size=1, max_size=4)), max_size=6
    )
)
def test_no_combination_of_accepted_symlinks_escapes_the_root(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[list[str], list[str]]]
) -> None:
    """Including chains of symlinks: every accepted symlink resolves to a path below the root."""
    root = tmp_path_factory.mktemp("outside") / "root"
    for parent in ("a", "b", "c", "a/a", "a/b", "b/a"):
        (root / parent).mkdir(parents=True, exist_ok=True)
    links = []
    for path, target in made:
        name, text = "/".join(path), "/".join(target)
        place = root / name / "link"
        if ".." in path or "." in path or not place.parent.is_dir() or os.path.lexists(place):
            continue
        if stays_inside(f"{name}/link".encode(), text.encode()):
            place.symlink_to(text)
            links.append(place)
    for link in links:
        try:
            assert link.resolve().is_relative_to(root)
        except (RuntimeError, OSError):  # a loop leads nowhere
            continue


def test_files_are_never_written_through_a_symlink(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    to = tmp_path / "to"
    to.mkdir()
    (to / "sub").symlink_to(outside)
    with DownloadDirectory(to) as landing:
        assert landing.receive(Entry("sub/x", 1, 1, 0o644, None), ReceiveStream(iter([FOLLOWS + b"x"])))
        assert landing.unstorable == {"sub/x": f"{to}/sub is in the way; move or delete it"}
    (to / "dir").mkdir()
    with DownloadDirectory(to) as landing:
        assert landing.receive(Entry("dir", 1, 1, 0o644, None), ReceiveStream(iter([FOLLOWS + b"x"])))
        assert landing.unstorable == {"dir": f"{to}/dir is a directory; move or delete it"}
    assert not list(outside.iterdir())
    assert sorted(path.name for path in to.iterdir()) == ["dir", "sub"]


def test_file_that_was_not_received_is_neither_truncated_nor_removed(tmp_path: Path) -> None:
    """A node may report any listed file as shorter or unreadable, even one that a local symlink leads to."""
    outside, to = tmp_path / "outside", tmp_path / "to"
    for folder in (outside, to):
        folder.mkdir()
    (outside / "x").write_text("mine")
    (to / "sub").symlink_to(outside)
    (to / "x").symlink_to(outside / "x")
    entries = [Entry(path, 1, 1, 0o644, None) for path in ("sub/x", "x", "missing")]
    with DownloadDirectory(to) as landing:
        assert landing.receive(entries[0], ReceiveStream(iter([FOLLOWS + b"x"])))
        for entry in entries[1:]:
            assert landing.receive(entry, ReceiveStream(iter([SKIPPED])))
        for entry in entries:
            landing.cut(entry, 0)
            landing.drop(entry)
    assert (outside / "x").read_text() == "mine"
    assert (to / "x").is_symlink()


def test_leftovers_of_dead_processes_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    dead = tmp_path / ".cloudgpu-part-4194399-abc"
    alive = tmp_path / f".cloudgpu-part-{os.getppid()}-abc"
    mine = tmp_path / ".cloudgpu-part-of-mine"
    output = tmp_path / ".cloudgpu-part-4194399-out"
    for folder in (dead, alive, mine, output):
        folder.mkdir()
    (output / "model.pt").touch()
    with DownloadDirectory(tmp_path) as landing:
        landing.receive_all([b"a", b"b"])
        landing.place("got")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, mine.name, output.name, "got"])


def test_temporary_directory_of_a_process_elsewhere_is_kept_while_it_is_locked(tmp_path: Path) -> None:
    """Another machine or container shares the directory: its process IDs mean nothing here, but its locks do."""
    with DownloadDirectory(tmp_path) as theirs:
        (used,) = tmp_path.glob(".cloudgpu-part-*")
        with DownloadDirectory(tmp_path) as landing:
            landing.receive_all([b"a"])
            landing.place("got")
        assert used.is_dir()
        theirs.receive_all([b"b"])
        theirs.place("theirs")
    left = tmp_path / ".cloudgpu-part-lock-abc"
    left.mkdir()
    (left / "lock").touch()
    with DownloadDirectory(tmp_path):
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["got", "theirs"]


@given(cuts=st.lists(st.binary(max_size=7), max_size=10), sizes=st.lists(st.integers(0, 9), max_size=8))
def test_stream_is_split_by_length(cuts: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(cuts)
    arriving = ReceiveStream(iter([cut for cut in cuts if cut]))
    at = 0
    for size in sizes:
        assert b"".join(arriving.take(size)) == whole[at : at + size]
        at += size
    assert arriving.rest() == whole[at:]
