"""`ssh-config --remove` reports exactly what it removed."""

from pathlib import Path

import pytest

from cloudgpu.cli.main import main
from cloudgpu.paths import Home
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.user_ssh_config import SshFolder, record_folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "state"))
    return Home(tmp_path / "state")


def add_entries(home: Home) -> Path:
    folder = SshFolder(Path.home() / ".ssh")
    folder.ours.mkdir(parents=True)
    (folder.ours / "s1").write_text(f"# cloudgpu cluster s1 of {home.root}\n")
    record_folder(home, "s1", folder)
    return folder.ours / "s1"


@pytest.mark.parametrize("name", ["s1", "quickstart-k3fz8w"])
def test_remove_deletes_entries_by_cluster_or_run_name(home, run, name, capsys):
    entries = add_entries(home)
    RecordStore(home).save_run(type(run)(**{**vars(run), "cluster": "s1"}))
    assert main(["ssh-config", name, "--remove"]) == 0
    assert "removed the entries for cluster s1" in capsys.readouterr().out
    assert not entries.exists()


def test_remove_without_entries_does_not_report_removal(home, capsys):
    assert main(["ssh-config", "other", "--remove"]) == 0
    assert "has no entries for cluster other" in capsys.readouterr().out


def test_remove_requires_a_name_if_no_cluster_is_recorded(home, capsys):
    assert main(["ssh-config", "--remove"]) == 2
    assert "no cluster is recorded" in capsys.readouterr().err


def test_remove_fails_if_the_record_is_unreadable(home, capsys):
    add_entries(home)
    home.cluster("s1").ssh_config.write_text("{")
    assert main(["ssh-config", "s1", "--remove"]) != 0
    told = capsys.readouterr()
    assert "cannot be read" in told.err
    assert "removed" not in told.out
