"""Malformed files that other login users may write into the lease directory."""

import json
import time

import pytest

from cloudgpu.node.agent import proc
from cloudgpu.node.agent.leases import lease, store

GOOD = {"token": "t", "cluster": "lab", "owner": "ann", "gpus": [0, 1], "expires_epoch_s": int(time.time()) + 3600}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FOLDER", str(tmp_path))
    (tmp_path / "lease-good").write_text(json.dumps(GOOD))
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[" * 60_000,
        '{"expires_epoch_s": Infinity, "gpus": []}',
        json.dumps({**GOOD, "expires_epoch_s": float("inf")}),
        json.dumps({**GOOD, "expires_epoch_s": 10**30}),
        json.dumps({**GOOD, "expires_epoch_s": True}),
        json.dumps({**GOOD, "expires_epoch_s": -1}),
        json.dumps({**GOOD, "gpus": [float("inf")]}),
        json.dumps({**GOOD, "gpus": [True, "1"]}),
        json.dumps({**GOOD, "gpus": [10**30]}),
    ],
    ids=lambda text: text[:24],
)
def test_malformed_lease_file_does_not_hide_valid_leases(folder, content):
    (folder / "lease-bad").write_text(content)
    assert store._read("lease-bad") is None
    found = store._read("lease-good")
    assert (found.cluster, found.gpus) == ("lab", (0, 1))
    assert "GPUs 0-1 by ann" in found.description


@pytest.mark.parametrize(("expires_in_s", "expected"), [(3600, [2, 3]), (-1, [0, 1])])
def test_active_lease_keeps_its_gpus_and_expired_lease_gets_free_ones(
    folder, tmp_path, monkeypatch, expires_in_s, expected
):
    """After a lease expires, another cluster may lease its GPUs: here, GPUs 2 and 3."""
    now = int(time.time())
    monkeypatch.setattr(lease, "gpu_ids", lambda: {f"GPU-{gpu}": gpu for gpu in range(4)})
    monkeypatch.setattr(lease, "gpu_processes", lambda _ids: [])
    monkeypatch.setattr(lease, "ensure_daemon_running", lambda _token, _home: None)
    (folder / "lease-good").unlink()
    store.write_lease(store.Lease("mine", "lab", "ann", (2, 3), now + expires_in_s))
    if expires_in_s < 0:
        store.write_lease(store.Lease("other", "lab", "bob", (2, 3), now + 3600))
    answers = []
    request = {"action": "take", "gpus": 2, "home": str(tmp_path / "home"), "token": "mine", "cluster": "lab"}
    lease.manage_lease({**request, "owner": "ann", "expires_epoch_s": now + 7200}, answers.append)
    assert answers == [{"devices": expected, "of": 4}]


def test_machines_that_share_the_lease_directory_count_only_their_own_leases(folder, tmp_path, monkeypatch):
    """A cluster on two such machines leases the same GPU numbers on both, and the leases have files of their own."""
    monkeypatch.setattr(lease, "gpu_ids", lambda: {f"GPU-{gpu}": gpu for gpu in range(4)})
    monkeypatch.setattr(lease, "gpu_processes", lambda _ids: [])
    monkeypatch.setattr(lease, "ensure_daemon_running", lambda _token, _home: None)
    (folder / "lease-good").unlink()
    request = {"action": "take", "gpus": 4, "token": "0123abcdef", "cluster": "lab", "owner": "ann"}
    answers = []
    for machine in ("red", "blue"):
        monkeypatch.setattr(proc, "machine_id", lambda machine=machine: machine)
        home = str(tmp_path / f"lab-0123abcd-{machine}")
        lease.manage_lease({**request, "home": home, "expires_epoch_s": int(time.time()) + 600}, answers.append)
        lease.manage_lease({"action": "show", "token": "0123abcdef"}, answers.append)
    assert [answer["devices"] for answer in answers[::2]] == [[0, 1, 2, 3]] * 2
    assert [[one["mine"] for one in answer["leases"]] for answer in answers[1::2]] == [[True], [True]]
    assert sorted(path.name for path in folder.glob("lease-*.json")) == [
        "lease-0123abcdef-blue.json",
        "lease-0123abcdef-red.json",
    ]
    # The lease of an older version names neither the host nor the machine. It counts, and is found by its directory.
    old = store.Lease("0123abcdef", "lab", "ann", (0,), int(time.time()) + 600, home="/home/ann/x/lab-0123abcd")
    store.write_lease(old)
    assert (folder / "lease-0123abcdef.json").exists()
    assert store.find_own_lease("0123abcdef", "/elsewhere/lab-0123abcd").gpus == (0,)
    assert len(store.active_leases()) == 2


def test_system_id_is_stable_and_differs_from_the_machine_id():
    assert proc.running_system_id() == proc.running_system_id() != ""
    assert proc.machine_id() == proc.machine_id() != proc.running_system_id()
