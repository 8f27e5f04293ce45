"""A damaged record does not hide others, and is reported with its path and field."""

import json

import pytest

from cloudgpu.app.cluster_status import list_cluster_statuses
from cloudgpu.app.planning import plan_files as plan_file
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import StateError, UsageError
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords
from cloudgpu.state.storage_records import StorageRecord, StorageRecords

CLUSTER = {
    "node_hourly_usd": ["NaN", "-1", "1e300", "", 31.2, True],
    "max_usd": ["Infinity", "much"],
    "nodes": [True, "2", 1.5, 10**30],
    "expires_at": ["9999-12-31T23:59:59Z", "0001-01-01T00:00+23:59", 5, "soon"],
    "created_at": [None, "0001-01-01"],
    "state": ["odd", 1],
    "instance_ids": ["i-1", [1]],
    "regions": [None],
    "storage": [[{"name": "x"}], [5]],
    "beside": [["x"], [{"usd": "NaN"}], [{"usd": None}]],
    "config": [["x"], {"a": 1}],
    "owner": [5, None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in CLUSTER.items() for value in values])
def test_invalid_cluster_record_is_damaged_and_others_are_listed(workspace, make, field, value):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.provisioning.create(make.plan(make.candidate()), "other")
    path = workspace.home.cluster("demo").record
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    shown = {one.record.name: one for one in list_cluster_statuses(workspace.records, workspace.clock.now())}
    assert {name: one.state for name, one in shown.items()} == {"demo": "damaged", "other": "up"}
    problem = shown["demo"].as_json()["problem"]
    assert str(path) in problem
    assert field in problem


def test_damaged_record_still_names_known_target(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    path = workspace.home.cluster("demo").record
    content = {**json.loads(path.read_text()), "target": "rehearsal"}
    path.write_text(json.dumps({**content, "expires_at": "soon"}))
    assert workspace.records.target("demo") == "rehearsal"


@pytest.mark.parametrize("target", ["mars", 1, None, ["aws"], {"aws": 1}])
def test_damaged_record_with_unknown_target_has_no_target(workspace, make, target):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    path = workspace.home.cluster("demo").record
    path.write_text(json.dumps({**json.loads(path.read_text()), "target": target, "expires_at": "soon"}))
    assert workspace.records.target("demo") == ""


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_record_without_mapping_has_no_target(workspace, make, text):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.home.cluster("demo").record.write_bytes(text)
    assert workspace.records.target("demo") == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [("ranks", {"x": [0]}), ("ranks", {"0": ["0"]}), ("stages", [["up"]]), ("started_at", "9999-01-01")],
)
def test_invalid_run_record_is_reported_as_damaged(workspace, make, field, value):
    row = {
        **dict.fromkeys(("run_id", "cluster", "recipe", "recipe_path", "owner", "team", "target"), "good-1"),
        "started_at": workspace.clock.now().isoformat(),
    }
    for run_id, content in (("good-1", row), ("bad-1", {**row, field: value})):
        path = workspace.home.run(run_id).record
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    assert [one.run_id for one in workspace.records.runs()] == ["good-1"]
    assert workspace.records.damaged_runs() == ["bad-1"]
    assert str(workspace.home.run("bad-1").record) in workspace.records.run_damage("bad-1")
    assert field in workspace.records.run_damage("bad-1")


@pytest.mark.parametrize("name", ["", "..", "../other", "a\0b", "a\nb", "x" * 256, "a/b"])
def test_invalid_file_name_matches_no_record(workspace, make, name):
    workspace.provisioning.create(make.plan(make.candidate()), "other")
    assert workspace.records.cluster(name) is None
    assert workspace.records.last_known(name) is None
    assert workspace.records.run(name) is None
    assert StorageRecords(workspace.home).get(name) is None
    assert MatrixRecords(workspace.home).matrix(name) is None


@pytest.mark.parametrize(("field", "value"), [("disposable", 1), ("created_at", "0001-01-01"), ("config", {"a": 1})])
def test_damaged_storage_record_is_reported_with_path_and_field(workspace, field, value):
    records = StorageRecords(workspace.home)
    good = StorageRecord(
        "sets", "efs", "t", "ann", "", "aws", "1", "", "us-east-1", workspace.clock.now(), disposable=False
    )
    records.save(good)
    path = workspace.home.storage("odd").record
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**json.loads(workspace.home.storage("sets").record.read_text()), field: value}))
    assert records.all() == [good]
    (why,) = records.damaged().values()
    assert str(path) in why
    assert field in why
    with pytest.raises(StateError, match="cannot be read"):
        records.get("odd")


@pytest.mark.parametrize(
    ("field", "value"), [("spent", {"t": "NaN"}), ("made", 1), ("rows", [{}]), ("created_at", "1")]
)
def test_damaged_matrix_record_is_reported_with_path_and_field(workspace, field, value):
    records = MatrixRecords(workspace.home)
    good = MatrixRecord(
        "one", "r", "r.yaml", "aws", (("a", ("1", "2")),), (), workspace.clock.now(), (), spent={"t": "1.5"}
    )
    records.save(good)
    path = workspace.home.matrix("odd").record
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**json.loads(workspace.home.matrix("one").record.read_text()), field: value}))
    assert records.all() == ([good], ["odd"])
    assert str(path) in records.damage("odd")
    assert field in records.damage("odd")


@pytest.mark.parametrize("row", [5, {}, {"at": "9999-12-31T23:59:59-23:59"}, {"at": 5}, {"market": "free"}])
def test_damaged_cooldown_entry_does_not_hide_others(workspace, make, row):
    cooldowns = Cooldowns(workspace.home, workspace.clock)
    candidate = make.candidate()
    cooldowns.note(workspace.cloud, candidate)
    stored = json.loads(workspace.home.cooldowns.read_text())
    (good,) = stored["refused"]
    stored["refused"].insert(0, {**good, "zone": "us-east-1f", **row} if isinstance(row, dict) and row else row)
    workspace.home.cooldowns.write_text(json.dumps(stored))
    workspace.clock.sleep(60)
    assert cooldowns.recent(workspace.cloud) == {(candidate.instance_type, candidate.zone, candidate.market): 60}


@pytest.mark.parametrize("change", [{"port": 0}, {"port": True}, {"port": 65536}, {"gpus": "8"}, {"host_keys": "x"}])
def test_damaged_inventory_error_names_path_and_field(workspace, make, change):
    up = workspace.provisioning.create(make.plan(make.candidate()), "demo")
    path = workspace.home.cluster("demo").inventory
    content = json.loads(path.read_text())
    content["nodes"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(StateError, match=next(iter(change))) as caught:
        stored_inventory(workspace.home, workspace.records.cluster("demo"))
    assert str(path) in caught.value.message
    assert up is not None


@pytest.mark.parametrize("heartbeat", ["soon", 5, "9999-12-31T23:59:59-23:59", "0001-01-01T00:00+23:59"])
def test_lease_with_impossible_heartbeat_has_no_holder(tmp_path, workspace, heartbeat):
    lease = ClusterLease(tmp_path / "lease", workspace.clock, "ann")
    with lease.hold():
        content = json.loads(lease.path.read_text())
    lease.path.write_text(json.dumps({**content, "host": "elsewhere", "heartbeat": heartbeat}))
    assert lease.holder() is None


@pytest.mark.parametrize(
    "index",
    ['{"schema": true, "current": 0, "entries": []}', '{"schema": 1, "current": true, "entries": []}', "[" * 100_000],
    ids=["schema", "current", "deep"],
)
def test_damaged_catalog_index_error_names_path(workspace, index):
    path = workspace.home.catalog("aws").index
    path.parent.mkdir(parents=True)
    path.write_text(index)
    with pytest.raises(StateError) as caught:
        CatalogSnapshots(workspace.home, "aws").history()
    assert str(path) in caught.value.message
    (path.parent / "overlay-²٣.json").write_text("{}")
    path.unlink()
    assert CatalogSnapshots(workspace.home, "aws").history().entries == ()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"sha256": NaN}'], ids=["deep", "long", "nan"])
def test_malformed_plan_file_is_rejected(text):
    with pytest.raises(UsageError, match=r"it\.json is not a plan saved by"):
        plan_file.parse_saved_plan(text, "it.json")
