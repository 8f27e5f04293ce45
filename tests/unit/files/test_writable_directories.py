"""Check that a directory is writable, without leaving files behind."""

import pytest

from cloudgpu.errors import StateError
from cloudgpu.paths import Home, ensure_writable
from cloudgpu.rehearsal import client


def test_writable_directory_is_created_and_left_empty(tmp_path):
    ensure_writable(tmp_path / "a" / "b", 1 << 16)
    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_failed_write_check_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(path, content, **_):
        path.write_bytes(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cloudgpu.paths.create", full)
    with pytest.raises(StateError, match=f"no space left on the disk that holds {tmp_path}"):
        ensure_writable(tmp_path, 4096)
    assert list(tmp_path.iterdir()) == []


def test_dangling_symlink_is_reported(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StateError, match=r"it is a symlink to .*/unmounted, which does not exist") as refused:
        ensure_writable(tmp_path / "link", 1)
    assert "mount the disk" in str(refused.value.hint)


def test_dangling_symlink_to_rehearsal_cloud_is_reported(tmp_path):
    (tmp_path / "rehearsal").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StateError, match=r"it is a symlink to .*/unmounted, which does not exist"):
        client.ensure_running(Home(tmp_path))
