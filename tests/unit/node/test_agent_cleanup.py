"""`leave` removes the directory recorded in the lease, even if a later login has another home directory."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cloudgpu.node.agent import mount
from cloudgpu.node.agent.leases import cleanup, lease, store, termination


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host without processes: lease and home directories below one folder."""
    monkeypatch.setattr(store, "FOLDER", str(tmp_path / "leases"))
    monkeypatch.setattr(lease, "_free", lambda wanted, *_: tuple(range(wanted)))
    monkeypatch.setattr(lease, "gpu_ids", lambda: {"GPU-0": 0})
    monkeypatch.setattr(lease, "ensure_daemon_running", lambda *_: None)
    monkeypatch.setattr(termination, "stop_runs", lambda *_, **__: [])
    monkeypatch.setattr(termination, "remove_containers", lambda *_: [])
    monkeypatch.setattr(termination, "remove_images", lambda *_: [])
    monkeypatch.setattr(mount, "unmount_all", lambda *_: [])
    monkeypatch.setenv("HOME", str(tmp_path / "later"))
    return tmp_path


def taken(host: Path) -> Path:
    home = host / "first/.cloudgpu/hosts/pair-0123abcd"
    spec = {"action": "take", "token": "0123abcd", "cluster": "pair", "owner": "lea", "gpus": 1, "home": str(home)}
    lease.manage_lease({**spec, "expires_epoch_s": int(time.time()) + 600}, lambda _: None)
    assert home.exists()
    return home


@pytest.mark.parametrize("recorded", [True, False])
def test_cleanup_finds_the_lease_directory_despite_changed_home(host, recorded):
    home = taken(host)
    later = host / "later/.cloudgpu/hosts/pair-0123abcd"
    spec = {"token": "0123abcd", "home": str(later)} if recorded else {"cluster": "pair", "owner": "lea"}
    said = []
    cleanup.clean_up(spec, said.append)
    assert said == [{"clusters": 1, "gpus": [0], "left": []}]
    assert not home.exists()
    assert store.find_own_lease("0123abcd", "/x/pair-0123abcd") is None


def test_symlinks_to_the_directory_are_removed_with_it(host):
    home = taken(host)
    link, other = home.with_name("pair-0123abcd-red"), home.with_name("pair-4567cdef-red")
    link.symlink_to(home.name)
    other.symlink_to("pair-4567cdef")
    cleanup.clean_up({"token": "0123abcd", "home": str(home)}, lambda _: None)
    assert not link.is_symlink()
    assert other.is_symlink()


def test_extending_a_lease_keeps_its_directory(host):
    home = taken(host)
    later = int(time.time()) + 6000
    lease.manage_lease(
        {"action": "extend", "token": "0123abcd", "home": "/x", "expires_epoch_s": later}, lambda _: None
    )
    assert (
        store.find_own_lease("0123abcd", "/x/pair-0123abcd").home,
        store.find_own_lease("0123abcd", "/x/pair-0123abcd").expires_epoch_s,
    ) == (
        str(home),
        later,
    )


def test_cluster_of_another_machine_with_the_same_home_directory_is_left_alone(host, monkeypatch):
    first = host / "later/.cloudgpu/hosts/pair-0123abcd-red"
    second = host / "later/.cloudgpu/hosts/pair-0123abcd-blue"
    for machine, home in (("red", first), ("blue", second)):
        monkeypatch.setattr(cleanup.proc, "machine_id", lambda machine=machine: machine)
        spec = {"action": "take", "token": "0123abcd", "cluster": "pair", "owner": "lea", "gpus": 1, "home": str(home)}
        lease.manage_lease({**spec, "expires_epoch_s": int(time.time()) + 600}, lambda _: None)
    said = []
    cleanup.clean_up({"cluster": "pair", "owner": "lea"}, said.append)
    assert said == [{"clusters": 1, "gpus": [0], "left": []}]
    assert (first.exists(), second.exists()) == (True, False)
    assert store.find_own_lease("0123abcd", str(first)).machine == "red"
    assert store.find_own_lease("0123abcd", str(second)) is None


def test_directory_of_an_older_version_is_removed_too(host):
    """Without its list of nodes, a cluster's directory is derived from the inventory, as the new version names it."""
    home = taken(host)
    said = []
    cleanup.clean_up({"token": "0123abcd", "home": str(home.with_name("pair-0123abcd-red"))}, said.append)
    assert said == [{"clusters": 2, "gpus": [0], "left": []}]
    assert not home.exists()
    assert store.find_own_lease("0123abcd", str(home)) is None


def test_cleanup_without_lease_directory_removes_nothing(host):
    said = []
    cleanup.clean_up({"token": "0123abcd", "home": str(host / "later/.cloudgpu/hosts/pair-0123abcd")}, said.append)
    assert said[0]["left"] == []
    assert not (host / "leases").exists()


def test_cleanup_kills_only_leftover_processes_of_its_directory(tmp_path, monkeypatch):
    """A stopped `follow` outlives its connection; interactive processes and other clusters are left alone."""
    monkeypatch.setattr(termination, "_LAST_LINES_S", 0.1)
    monkeypatch.setattr(termination, "_has_terminal", lambda entry: int(entry.name) == editor.pid)
    home, other = tmp_path / "pair-0123abcd", tmp_path / "pair-0123abcd-2"
    waits = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with ExitStack() as stack:

        def runs(path):
            process = stack.enter_context(subprocess.Popen([*waits, str(path), "follow"], start_new_session=True))
            stack.callback(process.kill)
            return process

        stopped = runs(home / ".cloudgpu/agent-1.py")
        editor, another = runs(home / "notes"), runs(other / ".cloudgpu/agent-1.py")
        stopped.send_signal(signal.SIGSTOP)
        assert termination.kill_leftover_processes(str(home)) == []
        assert stopped.wait(10) == -signal.SIGKILL
        assert [editor.poll(), another.poll()] == [None, None]
