"""Every state file has a format number: old formats are migrated, newer ones rejected, damage is contained."""

import json
import os
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cloudgpu.app.cluster_status import list_cluster_statuses
from cloudgpu.backends.quota_headroom import QUOTAS, QuotaHeadroom
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.state import user_ssh_config
from cloudgpu.state.catalog_snapshots import INDEX, SNAPSHOT, CatalogSnapshots
from cloudgpu.state.cluster_record import CLUSTER
from cloudgpu.state.cooldowns import COOLDOWNS, Cooldowns
from cloudgpu.state.documents import StateFile
from cloudgpu.state.nodes import INVENTORY, save_inventory, stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import MATRIX, RUN, MatrixRecords
from cloudgpu.state.storage_records import STORAGE, StorageRecords
from cloudgpu.state.user_ssh_config import SSH_CONFIG, SshFolder
from tests.manual_clock import ManualClock
from tests.unit.state import format1

FILES = {
    "clusters/up/cluster.json": CLUSTER,
    "clusters/up/inventory.json": INVENTORY,
    "clusters/up/ssh-config.json": SSH_CONFIG,
    "runs/running-333333/run.json": RUN,
    "matrices/lr/matrix.json": MATRIX,
    "storage/data/storage.json": STORAGE,
    "catalog/aws/index.json": INDEX,
    "catalog/aws/overlay-0002.json": SNAPSHOT,
    "catalog/aws/quotas.json": QUOTAS,
    "cooldowns.json": COOLDOWNS,
}


@dataclass(frozen=True)
class Box:
    name: str
    sides: tuple[int, int]


def _split_size(content):
    width, _, height = content.pop("size").partition("x")
    return {**content, "width": int(width), "height": int(height)}


def _join_sides(content):
    return {"name": content["name"], "sides": [content["width"], content["height"]]}


BOX = StateFile("box", Box, migrations=(_split_size, _join_sides))


@pytest.mark.parametrize(
    "content",
    [
        {"name": "a", "size": "2x3"},
        {"format": 1, "name": "a", "size": "2x3"},
        {"format": 2, "name": "a", "width": 2, "height": 3},
        {"format": 3, "name": "a", "sides": [2, 3], "added without a new format": True},
    ],
    ids=["none", "1", "2", "3"],
)
def test_every_earlier_format_is_migrated(tmp_path, content):
    path = tmp_path / "box.json"
    path.write_text(json.dumps(content))
    assert BOX.read(path) == Box("a", (2, 3))
    BOX.write(path, BOX.read(path))
    assert json.loads(path.read_text()) == {"format": 3, "name": "a", "sides": [2, 3]}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"format": True}, "expected a whole number, got True"),
        ({"format": "3"}, "expected a whole number, got 3"),
        ({"format": 0}, "expected a whole number from 1"),
        ({"format": None}, "expected a whole number, got None"),
        ({"format": 1, "name": "a"}, "'size' is missing"),
        ({"format": 2, "name": "a", "width": 1}, "'height' is missing"),
        ({"format": 3, "name": 5, "sides": [1, 2]}, "name: expected text, got 5"),
        ([], "expected a mapping, got list"),
        (5, "expected a mapping, got 5"),
    ],
)
def test_damaged_document_error_names_cause(tmp_path, content, why):
    path = tmp_path / "box.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=why):
        BOX.read(path)


def test_newer_format_error_names_file_and_format(tmp_path):
    path = tmp_path / "box.json"
    path.write_text('{"format": 4}')
    with pytest.raises(NewerFormatError) as caught:
        BOX.read(path)
    assert caught.value.message == f"{path} (box) has format 4, but this version of cloudgpu reads formats up to 3"
    assert "pip install -U cloudgpu" in caught.value.hint


def _spoil(home, name, **changes):
    path = home.root / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _rewrite(home):
    """Rewrite every file of the frozen home with the functions that commands use."""
    records, snapshots = RecordStore(home), CatalogSnapshots(home, "aws")
    records.save_cluster(format1.CLUSTERS["up"], format1.LATER)
    save_inventory(home, "up", format1.INVENTORIES["up"])
    user_ssh_config.record_folder(home, "up", SshFolder(format1.ROOT))
    records.save_run(format1.RUNS["running-333333"])
    MatrixRecords(home).save(format1.MATRICES["lr"])
    StorageRecords(home).save(format1.STORAGE["data"])
    snapshots.add(lambda _before: (format1.SNAPSHOTS[2], "", ()), at=format1.LATER, regions=())
    (home.catalog("aws").snapshot(3)).replace(home.catalog("aws").snapshot(2))
    identity = (cloud := _cloud()).account(), cloud.endpoint
    QuotaHeadroom(home, ManualClock(format1.NOTED))._write_cache(
        "aws", identity, {quotas.region: quotas for quotas in format1.QUOTAS}
    )
    Cooldowns(home, ManualClock(format1.NOTED)).note(
        cloud, SimpleNamespace(instance_type="g5.xlarge", zone="us-east-1a", market="spot")
    )


def _cloud():
    return SimpleNamespace(target="aws", endpoint="", account=lambda: "123456789012")


@pytest.mark.parametrize("name", FILES)
def test_rewritten_file_only_gains_format_number(frozen, name):
    before = json.loads((frozen.root / name).read_text())
    _rewrite(frozen)
    after = json.loads((frozen.root / name).read_text())
    assert next(iter(after.items())) == ("format", FILES[name].format)
    if name.endswith(("cooldowns.json", "index.json", "ssh-config.json")):
        assert after.keys() == {"format", *before}
    else:
        assert after == {"format": FILES[name].format, **before}


READERS = {
    "clusters/up/cluster.json": lambda home: RecordStore(home).cluster("up"),
    "clusters/up/inventory.json": lambda home: stored_inventory(home, format1.CLUSTERS["up"]),
    "runs/running-333333/run.json": lambda home: RecordStore(home).run("running-333333"),
    "matrices/lr/matrix.json": lambda home: MatrixRecords(home).found("lr"),
    "storage/data/storage.json": lambda home: StorageRecords(home).get("data"),
    "catalog/aws/index.json": lambda home: CatalogSnapshots(home, "aws").revert(0),
    "catalog/aws/overlay-0002.json": lambda home: CatalogSnapshots(home, "aws").current(),
}


@pytest.mark.parametrize("name", READERS)
def test_file_in_newer_format_is_rejected_and_unchanged(frozen, name):
    newer = FILES[name].format + 1
    _spoil(frozen, name, format=newer)
    content = (frozen.root / name).read_bytes()
    with pytest.raises(NewerFormatError) as caught:
        READERS[name](frozen)
    path = frozen.root / name
    assert f"{path} ({FILES[name].name}) has format {newer}" in caught.value.message
    assert f"reads formats up to {FILES[name].format}" in caught.value.message
    assert "upgrade cloudgpu" in caught.value.hint
    assert path.read_bytes() == content


def test_cache_in_newer_format_reads_as_empty(frozen):
    for name in ("cooldowns.json", "catalog/aws/quotas.json"):
        _spoil(frozen, name, format=2)
    clock = ManualClock(format1.NOTED)
    assert Cooldowns(frozen, clock).recent(_cloud()) == {}
    assert QuotaHeadroom(frozen, clock).cached("aws", None) == ()


def test_ssh_entries_in_newer_format_are_reported(frozen):
    _spoil(frozen, "clusters/up/ssh-config.json", format=2)
    (problem,) = user_ssh_config.remove_entries(frozen, "up")
    assert "has format 2" in problem


def _not_json(path):
    path.write_bytes(b"\xff\xfe{")


def _newer(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def _empty(path):
    path.write_bytes(b"")


def _directory(path):
    path.unlink()
    path.mkdir()


def _symlink_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


def _named_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = (_not_json, _newer, _empty, _directory, _symlink_to_itself, _named_pipe)


@pytest.fixture(params=DAMAGE, ids=lambda damage: damage.__name__.lstrip("_"))
def damage(request):
    return request.param


def test_damaged_cluster_does_not_hide_others(frozen, damage):
    path = frozen.cluster("extended").record
    damage(path)
    shown = {one.record.name: one for one in list_cluster_statuses(RecordStore(frozen), format1.NOW)}
    assert shown.keys() == {*format1.CLUSTERS, "oldest"}
    assert shown["extended"].state == "damaged"
    assert str(path) in shown["extended"].problem
    assert {name for name, one in shown.items() if one.state == "damaged"} == {"extended"}


def test_damaged_run_does_not_hide_others(frozen, damage):
    path = frozen.run("failed-555555").record
    damage(path)
    records = RecordStore(frozen)
    assert {run.run_id for run in records.runs()} == {*format1.RUNS, format1.DIVERGED_RUN} - {"failed-555555"}
    assert records.damaged_runs() == ["failed-555555"]
    assert str(path) in records.run_damage("failed-555555")


def test_damaged_matrix_does_not_hide_others(frozen, damage):
    path = frozen.matrix("lr").record
    damage(path)
    records = MatrixRecords(frozen)
    assert records.all() == ([format1.MATRICES["new"]], ["lr"])
    assert str(path) in records.damage("lr")


def test_damaged_storage_does_not_hide_others(frozen, damage):
    path = frozen.storage("data").record
    damage(path)
    records = StorageRecords(frozen)
    assert records.all() == [format1.STORAGE["scratch"]]
    assert list(records.damaged()) == ["data"]
    assert str(path) in records.damaged()["data"]


def test_damaged_snapshot_does_not_hide_others(frozen, damage):
    damage(frozen.catalog("aws").snapshot(1))
    snapshots = CatalogSnapshots(frozen, "aws")
    assert snapshots.current() == format1.SNAPSHOTS[2]
    assert snapshots.history() == format1.HISTORY
    with pytest.raises(StateError, match=r"overlay-0001\.json"):
        snapshots.revert(1)


def test_damaged_region_does_not_discard_other_quotas(frozen):
    path = frozen.catalog("aws").quotas
    stored = json.loads(path.read_text())
    stored["regions"]["eu-west-1"] = {"limits": {"L-417A185B": True}}
    path.write_text(json.dumps(stored))
    assert QuotaHeadroom(frozen, ManualClock(format1.NOTED)).cached("aws", None) == (format1.QUOTAS[1],)


def test_other_files_and_empty_directories_are_not_records(frozen):
    for folder in (frozen.clusters, frozen.runs, frozen.matrices, frozen.storages):
        (folder / "notes.txt").write_text("mine")
        (folder / "empty").mkdir()
    records = RecordStore(frozen)
    assert len(records.clusters()) == len(format1.CLUSTERS) + 1
    assert records.damaged_runs() == []
    assert MatrixRecords(frozen).all()[1] == []
    assert StorageRecords(frozen).damaged() == {}


def test_unlistable_cluster_directory_raises_state_error(home):
    home.ensure()
    home.clusters.write_text("")
    with pytest.raises(StateError, match="cannot read"):
        RecordStore(home).clusters()
