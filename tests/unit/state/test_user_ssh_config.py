"""The user's own `~/.ssh` configuration is preserved byte for byte."""

import json
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.app.ssh import ClusterEntries, write_entries
from cloudgpu.backends.lifecycle.deletion import remove_local_record
from cloudgpu.errors import StateError
from cloudgpu.paths import Home
from cloudgpu.state import user_ssh_config
from cloudgpu.state.user_ssh_config import SshFolder

THEIRS = b"# mine \xff, not UTF-8\nHost *\n\tUser me"


@pytest.fixture
def folder(tmp_path: Path) -> SshFolder:
    return SshFolder(tmp_path / "person" / ".ssh")


def entries(home: Home, name: str) -> ClusterEntries:
    return ClusterEntries((name,), f"# cluster {name} of {home.root}\n\nHost {name}\n")


@pytest.fixture
def lab(tmp_path: Path) -> Home:
    home = Home(tmp_path / "a home")
    for name in ("lab", "big"):
        home.cluster(name).root.mkdir(parents=True)
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_include_line_is_added_once_and_removed_with_last_cluster(folder, lab):
    folder.root.mkdir(parents=True)
    folder.config.write_bytes(THEIRS)
    folder.config.chmod(0o640)
    assert write_entries(lab, "lab", entries(lab, "lab"), folder) is True
    assert write_entries(lab, "big", entries(lab, "big"), folder) is False
    assert write_entries(lab, "lab", entries(lab, "lab"), folder) is False
    added = f"# clusters of cloudgpu; removed with the last of them\nInclude {folder.ours}/*\n\n".encode()
    assert folder.config.read_bytes() == added + THEIRS
    assert [mode(folder.config), mode(folder.ours), mode(folder.ours / "lab")] == [0o640, 0o700, 0o600]
    assert user_ssh_config.remove_entries(lab, "lab") == []
    assert folder.config.read_bytes() == added + THEIRS
    assert user_ssh_config.remove_entries(lab, "big") == []
    assert folder.config.read_bytes() == THEIRS
    assert mode(folder.config) == 0o640
    assert [one.name for one in folder.root.iterdir()] == ["config"]
    assert user_ssh_config.remove_entries(lab, "big") == []


def test_created_ssh_config_is_removed_with_last_cluster(folder, lab):
    assert write_entries(lab, "lab", entries(lab, "lab"), folder) is True
    assert [mode(folder.root), mode(folder.config)] == [0o700, 0o600]
    assert user_ssh_config.remove_entries(lab, "lab") == []
    assert list(folder.root.iterdir()) == []


def test_include_line_written_by_user_is_kept(folder, lab):
    folder.root.mkdir(parents=True)
    text = f"Host x\nInclude {folder.ours}/*\n"
    folder.config.write_text(text)
    assert write_entries(lab, "lab", entries(lab, "lab"), folder) is False
    user_ssh_config.remove_entries(lab, "lab")
    assert folder.config.read_text() == text


def test_symlinked_ssh_config_stays_symlink(folder, lab, tmp_path):
    real = tmp_path / "dotfiles" / "ssh-config"
    real.parent.mkdir()
    real.write_bytes(THEIRS)
    folder.root.mkdir(parents=True)
    folder.config.symlink_to(real)
    assert write_entries(lab, "lab", entries(lab, "lab"), folder) is True
    assert folder.config.is_symlink()
    assert real.read_bytes().endswith(THEIRS)
    assert b"Include" in real.read_bytes()
    user_ssh_config.remove_entries(lab, "lab")
    assert folder.config.is_symlink()
    assert real.read_bytes() == THEIRS


def test_read_only_ssh_config_error_shows_line_to_add(folder, lab, monkeypatch):
    folder.root.mkdir(parents=True)
    folder.config.write_bytes(THEIRS)
    monkeypatch.setattr("os.access", lambda *_: False)  # who runs this may be root, whom no permission stops
    with pytest.raises(StateError, match="is not writable") as raised:
        write_entries(lab, "lab", entries(lab, "lab"), folder)
    assert raised.value.hint == f"add this line at the top of the file: Include {folder.ours}/*"
    assert folder.config.read_bytes() == THEIRS


def test_unwritable_entries_folder_raises_state_error(folder, lab):
    folder.root.mkdir(parents=True)
    folder.ours.write_text("a file")
    with pytest.raises(StateError, match="cannot be written") as raised:
        write_entries(lab, "lab", entries(lab, "lab"), folder)
    assert "--print" in raised.value.hint
    assert user_ssh_config.remove_entries(lab, "lab") == []


def test_homes_do_not_overwrite_each_others_ssh_entries(folder, lab, tmp_path):
    other = Home(tmp_path / "other")
    other.cluster("lab").root.mkdir(parents=True)
    write_entries(lab, "lab", entries(lab, "lab"), folder)
    with pytest.raises(StateError, match="belongs to a different cluster, also named lab"):
        write_entries(other, "lab", entries(other, "lab"), folder)
    (other.cluster("lab").root / "ssh-config.json").write_text(json.dumps({"folder": str(folder.root)}))
    assert user_ssh_config.remove_entries(other, "lab") == []
    assert (folder.ours / "lab").exists()


def test_unreadable_ssh_record_is_reported_without_error(folder, lab):
    (lab.cluster("lab").root / "ssh-config.json").write_text("{")
    (trouble,) = user_ssh_config.remove_entries(lab, "lab")
    assert "may be left in ~/.ssh/cloudgpu.d" in trouble


def test_removing_local_record_removes_ssh_entries(folder, lab):
    write_entries(lab, "lab", entries(lab, "lab"), folder)
    forgotten = []
    remove_local_record(
        SimpleNamespace(home=lab, emit=print, ledger=None, records=SimpleNamespace(forget_cluster=forgotten.append)),
        "lab",
    )
    assert forgotten == ["lab"]
    assert not folder.config.exists()
