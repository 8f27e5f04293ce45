"""Open only regular files, with a size limit, without hanging."""

import errno
import io
import os
import socket
import stat
import sys
import threading
from pathlib import Path

import pytest

from cloudgpu import files
from cloudgpu.files import FileRefusedError

pytestmark = pytest.mark.timeout(20)
LIMIT = 1000


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """One file of every kind that is not a regular file, and symlinks to them."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(tmp_path)  # the address of a socket is limited to 107 characters
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    (tmp_path / "to-pipe").symlink_to("pipe")
    return tmp_path


KINDS = {
    "directory": "a directory",
    "pipe": "a named pipe",
    "zero": "a device",
    "null": "a device",
    "socket": "a socket",
    "to-pipe": "a named pipe",
}
OPENERS = {
    "read_bytes": lambda path: files.read_bytes(path, LIMIT),
    "read_text": lambda path: files.read_text(path, LIMIT),
    "read_json": lambda path: files.read_json(path, LIMIT),
    "open_for_reading": files.open_for_reading,
    "open_for_appending": files.open_for_appending,
    "open_descriptor": lambda path: files.open_descriptor(path, os.O_RDWR | os.O_CREAT),
    "write_for_user": lambda path: files.write_for_user(path, b"new"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("opener", OPENERS)
def test_only_regular_files_are_opened(odd: Path, name: str, opener: str):
    with pytest.raises(FileRefusedError) as refused:
        OPENERS[opener](odd / name)
    assert refused.value.strerror == f"{KINDS[name]}, not a regular file"
    assert str(refused.value) == refused.value.strerror


def test_pipe_swapped_in_after_check_does_not_hang(tmp_path: Path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **kw: real(tmp_path / "file", **kw))
    with pytest.raises(FileRefusedError, match="named pipe"):
        files.read_bytes(tmp_path / "pipe", LIMIT)


def test_rejected_file_leaves_no_descriptor_open(tmp_path: Path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **kw: real(tmp_path / "file", **kw))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(FileRefusedError):
            files.read_bytes(tmp_path / "pipe", LIMIT)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_symlink_to_regular_file_is_followed(tmp_path: Path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert files.read_text(tmp_path / "link", LIMIT) == "text"


@pytest.mark.parametrize(("size", "taken"), [(0, True), (LIMIT, True), (LIMIT + 1, False)])
def test_file_at_size_limit_is_read_and_larger_is_rejected(tmp_path: Path, size: int, taken: bool):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    if taken:
        assert len(files.read_bytes(path, LIMIT)) == size
    else:
        with pytest.raises(FileRefusedError, match="larger than 1000 bytes"):
            files.read_bytes(path, LIMIT)


def test_sparse_file_is_rejected_by_size(tmp_path: Path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(FileRefusedError) as refused:
        files.read_bytes(path, files.RECORD_BYTES)
    assert refused.value.errno == errno.EFBIG
    assert "64 MiB" in str(refused.value)


def test_file_with_unknown_size_is_limited():
    path = Path("/proc/self/smaps")
    assert path.stat().st_size == 0
    with pytest.raises(FileRefusedError, match="larger than 1000 bytes"):
        files.read_bytes(path, LIMIT)
    assert files.read_bytes(Path("/proc/self/stat"), LIMIT)


def test_file_growing_during_read_is_limited(tmp_path: Path, monkeypatch):
    path = tmp_path / "growing"
    path.write_bytes(b"x")
    real = os.fstat

    def fstat(descriptor):
        found = real(descriptor)
        path.write_bytes(b"x" * (LIMIT + 1))
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(FileRefusedError, match="larger than"):
        files.read_bytes(path, LIMIT)


def test_text_that_is_not_utf_8_is_rejected(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"ab\xff")
    with pytest.raises(FileRefusedError) as refused:
        files.read_text(tmp_path / "file", LIMIT)
    assert refused.value.strerror == "not UTF-8 text (byte 2)"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "{", "nul", "1" * 5000])
def test_invalid_json_raises_value_error(tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own words
        files.read_json(tmp_path / "file")


def test_missing_file_raises_file_not_found_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "none", LIMIT)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.read_bytes(tmp_path / "file" / "none", LIMIT)


def test_standard_input_is_limited(monkeypatch):
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(FileRefusedError, match="larger than 1 MiB"):
            files.read_input(files.MIB)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text")))
    assert files.read_input(4) == b"text"


@pytest.mark.parametrize("name", ["pipe", "socket", "to-pipe"])
def test_pipe_or_socket_at_target_path_is_replaced(odd: Path, name: str):
    files.replace(odd / name, b"new")
    found = (odd / name).lstat()
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert (odd / name).read_bytes() == b"new"
    assert stat.S_ISFIFO((odd / "pipe").lstat().st_mode) == (name != "pipe")
    assert not list(odd.glob(".*"))


def test_device_is_never_replaced(monkeypatch, tmp_path: Path):
    (tmp_path / "file").touch()
    null = Path("/dev/null").stat()
    monkeypatch.setattr(Path, "lstat", lambda _: null)  # making a device takes root
    with pytest.raises(FileRefusedError, match="a device"):
        files.replace(tmp_path / "file", b"new")


def test_failed_replace_keeps_old_file_without_leftovers(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_user_file_keeps_permissions_and_symlink(tmp_path: Path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("file")
    files.write_for_user(link, b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_new_user_file_has_default_permissions(tmp_path: Path):
    (tmp_path / "usual").touch()
    files.write_for_user(tmp_path / "new", b"new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_file_with_longest_name_is_replaced(tmp_path: Path):
    path = tmp_path / ("x" * 255)
    files.replace(path, b"new")
    assert path.read_bytes() == b"new"


def test_concurrent_readers_see_old_or_new_file(tmp_path: Path):
    path = tmp_path / "file"
    contents = [b"a" * 70_000, b"b" * 50_000]
    path.write_bytes(contents[0])
    ended = threading.Event()
    seen: list[bytes] = []

    def look():
        while not ended.is_set():
            seen.append(files.read_bytes(path, files.MIB))

    reader = threading.Thread(target=look)
    reader.start()
    for at in range(20):
        files.replace(path, contents[at % 2])
    ended.set()
    reader.join()
    assert seen
    assert set(seen) <= set(contents)


@pytest.mark.parametrize("durable", [True, False])
def test_durable_replacement_flushes_file_before_and_directory_after_the_rename(tmp_path: Path, monkeypatch, durable):
    steps = []

    def fsync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    rename = Path.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda path, target: steps.append("rename") or rename(path, target))
    files.replace(tmp_path / "a", b"new", durable=durable)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert steps == (["file", "rename", "directory"] if durable else ["rename"])


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_missing_parents_of_a_private_directory_are_private_too(tmp_path: Path, umask: int):
    """A state home that is created as the parent of another directory must not be readable by other users."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    before = os.umask(umask)
    try:
        for _ in range(2):
            files.make_private_directory(tmp_path / "shared/home/clusters/lab")
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("shared", "shared/home", "shared/home/clusters")
    ]
    assert modes == [0o755, 0o700, 0o700]
    assert stat.S_IMODE((tmp_path / "shared/home/clusters/lab").stat().st_mode) == 0o700


def test_private_directory_fails_as_any_other_where_it_cannot_be(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for place, error in (("file", FileExistsError), ("file/below", NotADirectoryError), ("link", FileExistsError)):
        with pytest.raises(error):
            files.make_private_directory(tmp_path / place)
