"""What a hostile node may send, and what becomes of it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import StateError
from cloudgpu.ssh.transfer.local_tree import stays_inside
from cloudgpu.ssh.transfer.node_read import FOLLOWS
from cloudgpu.ssh.transfer.node_tree import Entry
from cloudgpu.ssh.transfer.receive import DownloadDirectory, ReceiveStream, validate_entry


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "..", ".", "", "a//b", "a/./b", "a/", "/", "a\0b", "a/.."]
)
def test_names_that_lead_out_are_refused(path: str) -> None:
    with pytest.raises(StateError, match="outside the download directory"):
        validate_entry("node 3", [path, 1, 1, 0o644, None])


@pytest.mark.parametrize(
    ("path", "link"),
    [("l", "/etc"), ("l", ".."), ("a/l", "../.."), ("l", "a/../.."), ("l", "a/../b"), ("l", ""), ("a/l", "../../a")],
)
def test_links_that_lead_out_are_refused(path: str, link: str) -> None:
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
def test_lists_that_make_no_sense_are_refused(fields: object) -> None:
    with pytest.raises(StateError, match="node 3 sent a malformed file list"):
        validate_entry("node 3", fields)


def test_no_file_arrives_with_special_bits() -> None:
    assert validate_entry("node 3", ["a", 1, 1, 0o6755, None]).mode == 0o755


names = st.sampled_from(["a", "b", "..", ".", "c"])


@given(
    made=st.lists(
        st.tuples(st.lists(names, min_size=1, max_size=3), st.lists(names, min_size=1, max_size=4)), max_size=6
    )
)
def test_no_set_of_accepted_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[list[str], list[str]]]
) -> None:
    """Links to links included: what a link of any accepted set resolves to lies below the root."""
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


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    to = tmp_path / "to"
    to.mkdir()
    (to / "sub").symlink_to(outside)
    with DownloadDirectory(to) as landing, pytest.raises(StateError, match="in the way"):
        landing.receive(Entry("sub/x", 1, 1, 0o644, None), ReceiveStream(iter([FOLLOWS + b"x"])))
    (to / "dir").mkdir()
    with DownloadDirectory(to) as landing, pytest.raises(StateError, match="is a directory"):
        landing.receive(Entry("dir", 1, 1, 0o644, None), ReceiveStream(iter([FOLLOWS + b"x"])))
    assert not list(outside.iterdir())
    assert sorted(path.name for path in to.iterdir()) == ["dir", "sub"]


def test_what_a_killed_process_left_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    dead = tmp_path / ".cloudgpu-part-4194399-abc"
    alive = tmp_path / f".cloudgpu-part-{os.getppid()}-abc"
    mine = tmp_path / ".cloudgpu-part-of-mine"
    for folder in (dead, alive, mine):
        folder.mkdir()
    with DownloadDirectory(tmp_path) as landing:
        landing.receive_all([b"a", b"b"])
        landing.place("got")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, mine.name, "got"])


@given(cuts=st.lists(st.binary(max_size=7), max_size=10), sizes=st.lists(st.integers(0, 9), max_size=8))
def test_a_stream_is_taken_apart_by_length(cuts: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(cuts)
    arriving = ReceiveStream(iter([cut for cut in cuts if cut]))
    at = 0
    for size in sizes:
        assert b"".join(arriving.take(size)) == whole[at : at + size]
        at += size
    assert arriving.rest() == whole[at:]
