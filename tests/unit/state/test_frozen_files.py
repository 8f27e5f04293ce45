"""Every file written by an earlier version is still read with the same values."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.state import user_ssh_config
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import MatrixRecords
from cloudgpu.state.storage_records import StorageRecords
from tests.manual_clock import ManualClock
from tests.unit.state import format1


def test_format_1_clusters_are_read(frozen):
    records = RecordStore(frozen)
    assert {name: records.cluster(name) for name in format1.CLUSTERS} == format1.CLUSTERS
    assert records.cluster("oldest") == format1.OLDEST_CLUSTER
    assert {record.name for record in records.clusters()} == {*format1.CLUSTERS, "oldest"}


def test_format_1_runs_are_read(frozen):
    records = RecordStore(frozen)
    assert {run_id: records.run(run_id) for run_id in format1.RUNS} == format1.RUNS
    assert {run.run_id for run in records.runs()} == {*format1.RUNS, format1.DIVERGED_RUN}
    diverged = records.run(format1.DIVERGED_RUN)
    assert diverged is not None
    assert math.isnan(diverged.metrics["loss"])
    assert diverged.ranks == {"0": (0, 1), "1": (2, 3)}


def test_format_1_matrices_are_read(frozen):
    found, damaged = MatrixRecords(frozen).all()
    assert {record.name: record for record in found} == format1.MATRICES
    assert damaged == []


def test_format_1_storage_is_read(frozen):
    records = StorageRecords(frozen)
    assert {record.name: record for record in records.all()} == format1.STORAGE
    assert records.damaged() == {}


@pytest.mark.parametrize("name", format1.INVENTORIES)
def test_format_1_inventories_are_read(frozen, name):
    assert stored_inventory(frozen, format1.CLUSTERS[name]) == format1.INVENTORIES[name]


def test_format_1_ssh_folder_is_read(frozen, monkeypatch):
    opened = []
    monkeypatch.setattr(user_ssh_config, "SshFolder", lambda root: opened.append(root) or _Folder())
    assert user_ssh_config.remove_entries(frozen, "up") == []
    assert opened == [Path(format1.SSH_FOLDER)]


class _Folder:
    def owner(self, cluster: str) -> str:
        return f"another home than that of {cluster}"


def test_format_1_cooldowns_are_read(frozen):
    clock = ManualClock(format1.NOTED)
    clock.sleep(60)
    backend = SimpleNamespace(endpoint="", account=lambda: "123456789012")
    assert Cooldowns(frozen, clock).recent(backend) == format1.COOLDOWNS


def test_format_1_catalog_snapshots_are_read(frozen):
    snapshots = CatalogSnapshots(frozen, "aws")
    assert snapshots.history() == format1.HISTORY
    assert snapshots.current() == format1.SNAPSHOTS[2]
    snapshots.revert(1)
    assert snapshots.current() == format1.SNAPSHOTS[1]


def test_format_1_quotas_are_read(frozen):
    assert QuotaHeadroom(frozen, ManualClock(format1.NOTED)).cached("aws", None) == format1.QUOTAS


def test_every_frozen_file_is_read_by_test():
    names = {path.name for path in format1.ROOT.rglob("*") if path.is_file()}
    assert names == {
        "cluster.json",
        "cooldowns.json",
        "index.json",
        "inventory.json",
        "matrix.json",
        "overlay-0001.json",
        "overlay-0002.json",
        "quotas.json",
        "run.json",
        "ssh-config.json",
        "storage.json",
    }
