"""Storage around a cluster's life: what is found, made, moved, ended and kept."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.aws.storage.storage_tags import StoragePart, TaggedStorage
from cloudgpu.backends.aws.clusters.storage import ClusterStorage, clear_deletion_marks
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.backends.storage_outcome import RetainedStorage, StorageOutcome
from cloudgpu.cli.render.cluster import deletion_lines
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import StateError, UsageError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.attached_storage import missing_storage, unique_name
from cloudgpu.state.storage_records import StorageRecords
from tests.unit.app.conftest import START

SETS = {"name": "sets", "to": "/sets", "mode": "ro"}
SCRATCH = {"name": "scratch", "to": "/scratch", "make": {"kind": "lustre", "size": "1200GiB"}, "keep": False}
KEPT = {"name": "kept", "to": "/kept", "make": {"kind": "ebs", "size": "100GiB"}}


def stands(name, kind, zone="", *, token="t", keep="true", owner="ann", made_for=""):
    tags = {"cloudgpu:storage": name, "cloudgpu:kind": kind, "cloudgpu:owner": owner, "cloudgpu:token": token}
    tags |= {"cloudgpu:keep": keep, "cloudgpu:made-for": made_for}
    data = StoragePart(
        kind, f"fs-{name}", "us-east-1", tags, "available", Decimal(100), START, zone=zone, mount_name="mnt"
    )
    return TaggedStorage(
        name, token, "us-east-1", (data, StoragePart("security-group", f"sg-{name}", "us-east-1", tags))
    )


@dataclass
class Stores:
    """A cloud's storage whose engine makes what the record says."""

    target: str = "rehearsal"
    endpoint: str = "rehearsal:KEY"
    there: list = field(default_factory=list)
    attached: list = field(default_factory=list)
    requested_engine: str = ""

    def account(self):
        return "111122223333"

    def engine(self, record):
        self.record = record
        return self

    def up(self, stack, on_event):
        keep = stack.config["keep"]
        made = stands(self.record.name, self.record.kind, stack.config.get("zone", ""), token=self.record.token,
                      keep=keep, made_for=stack.config.get("madeFor", ""))  # fmt: skip
        self.there.append(made)
        return AppliedStack({"id": made.data.id})

    def destroy(self, stack, on_event):
        self.there = [one for one in self.there if one.token != self.record.token]

    def found(self, region, name=""):
        return [one for one in self.there if one.region == region and name in ("", one.name)]

    def empty(self, one):
        pass

    def end(self, one):
        self.there.remove(one)
        return []

    def attach(self, region, volume_id, instance_id, number):
        self.attached.append((volume_id, instance_id, number))


@pytest.fixture
def stores(workspace):
    workspace.cloud.stores = Stores()
    return workspace.cloud.stores


@pytest.fixture
def room(workspace, stores):
    return ClusterStorage(workspace.context)


@pytest.fixture
def begun(workspace, make):
    """A cluster that is being made, and a candidate for it."""
    candidate = replace(make.candidate(), region="us-east-1", zone="us-east-1c")
    record = workspace.provisioning._new_record(make.plan(candidate), "demo", "")
    return workspace.context.records.save_cluster(record, START), candidate


def recipe(make, *storage):
    plain = make.plan(make.candidate()).recipe
    return Recipe.model_validate({**plain.model_dump(by_alias=True, mode="json"), "storage": list(storage)})


def names(stores):
    return sorted(one.name for one in stores.there)


def test_what_stands_is_mounted_with_its_group_and_stays(room, stores, begun, make, workspace):
    stores.there = [stands("sets", "lustre", "us-east-1c")]
    record, ready = room.ready(recipe(make, SETS), *begun, {})
    (mount,) = ready.mounts
    assert (mount.to, mount.read_only, mount.mount_name) == ("/sets", True, "mnt")
    assert mount.source == "fs-sets.fsx.us-east-1.amazonaws.com"
    assert ready.config["storageSecurityGroupIds"] == "sg-sets"
    assert [row.ends for row in workspace.context.records.cluster("demo").storage] == [False]
    ended = room.end(record)
    assert (ended.ended, [one.name for one in ended.kept]) == ((), ["sets"])
    assert names(stores) == ["sets"]


def test_what_is_the_clusters_own_has_a_name_of_its_own_and_goes_with_it(room, stores, begun, make, workspace):
    record, _ = room.ready(recipe(make, SCRATCH), *begun, {})
    (row,) = record.storage
    assert row.name == unique_name(recipe(make, SCRATCH).storage[0], record.token) != "scratch"
    assert stores.there[0].made_for == "demo"
    assert room.end(clear_deletion_marks(record)).ended == (row.name,)
    assert stores.there == []
    assert workspace.context.ledger.entries(cluster=f"storage {row.name}")[0].state == "closed"


def test_what_is_kept_goes_only_as_long_as_the_cluster_never_stood(room, stores, begun, make):
    record, _ = room.ready(recipe(make, KEPT), *begun, {})
    again, _ = room.ready(recipe(make, KEPT), record, begun[1], {})
    assert [row.ends for row in again.storage] == [True]  # a killed `up` goes on, and nobody has used it yet
    stood = clear_deletion_marks(again)
    assert [row.ends for row in stood.storage] == [False]
    assert [one.name for one in room.end(stood).kept] == ["kept"]
    room.end(again)
    assert stores.there == []


def test_what_another_cluster_has_made_and_kept_is_used_and_never_ended(room, stores, begun, make):
    stores.there = [stands("kept", "ebs", "us-east-1c", owner="bob")]
    record, _ = room.ready(recipe(make, KEPT), *begun, {})
    room.attach(record, ("i-1",))
    assert stores.attached == [("fs-kept", "i-1", 0)]
    assert room.end(record).ended == ()
    assert names(stores) == ["kept"]


def test_it_is_made_anew_where_the_next_candidate_is(room, stores, begun, make, workspace):
    record, candidate = begun
    first, _ = room.ready(recipe(make, SCRATCH), record, candidate, {})
    second, _ = room.ready(recipe(make, SCRATCH), first, replace(candidate, zone="us-east-1d"), {})
    assert [one.data.zone for one in stores.there] == ["us-east-1d"]
    assert [row.zone for row in second.storage] == ["us-east-1d"]
    third, _ = room.ready(recipe(make, SCRATCH), second, replace(candidate, zone="us-east-1d"), {})
    assert third.storage == second.storage


def test_what_is_gone_or_elsewhere_meanwhile_is_refused(room, stores, begun, make):
    with pytest.raises(StateError, match="does not exist"):
        room.ready(recipe(make, SETS), *begun, {})
    stores.there = [stands("sets", "lustre", "us-east-1d")]
    with pytest.raises(StateError, match="is in us-east-1d"):
        room.ready(recipe(make, SETS), *begun, {})
    stores.there = [stands("sets", "efs")]
    with pytest.raises(UsageError, match="VPC that is created with the cluster"):
        room.ready(recipe(make, SETS), *begun, {"createVpc": "true"})


def test_a_lost_home_ends_what_its_clusters_tag_says_and_nothing_else(room, stores):
    own = {"keep": "false", "made_for": "demo"}
    stores.there = [
        stands("own", "efs", token="a", **own),
        stands("bobs", "efs", token="b", owner="bob", **own),
        stands("kept", "efs", token="c", made_for="demo"),
    ]
    assert room.delete_unrecorded("demo", ["us-east-1"]).ended == ("own",)
    assert names(stores) == ["bobs", "kept"]


def test_a_cluster_without_the_storage_does_not_fit(room, stores, begun, make):
    stores.there = [stands("sets", "efs")]
    record, _ = room.ready(recipe(make, SETS), *begun, {})
    assert missing_storage(recipe(make, SETS), record.storage) == []
    assert missing_storage(recipe(make, {**SETS, "to": "/other"}), record.storage) == ["sets"]
    assert missing_storage(recipe(make, {**SETS, "mode": "rw"}), record.storage) == ["sets"]


def test_the_bill_counts_it_by_the_hour_and_no_node(room, begun, make, workspace):
    record, _ = room.ready(recipe(make, SCRATCH), *begun, {})
    (row,) = workspace.context.ledger.report(by="run", now=START + timedelta(hours=10)).rows
    assert row.key == f"storage {record.storage[0].name}"
    assert (row.node_hours, row.open_entries) == (0, 1)
    assert row.usd == Decimal("2.333333")  # 168 USD a month of 720 hours, ten of them
    StorageRecords(workspace.context.home).forget(record.storage[0].name)


def test_down_names_what_went_and_what_stays():
    kept = RetainedStorage("sets", "lustre", "us-east-1", Decimal(168), simulated=False)
    unknown = RetainedStorage("far", "ebs", "eu-west-1", None, simulated=True)
    ended = DeletionResult(
        "demo", known=True, instances=("i-1",), usd=Decimal(3), storage=StorageOutcome(("own-1",), (kept, unknown))
    )
    assert deletion_lines(ended) == [
        "cluster demo is deleted, verified by tag search; 1 instance terminated",
        "  i-1",
        "  storage own-1, created for the cluster, is deleted",
        "  cost $3.00",
        "  storage sets (lustre in us-east-1) is retained with its data: AWS charges $168.00 a month; "
        "to delete it: cloudgpu storage delete sets --delete-data",
        "  storage far (ebs in eu-west-1) is retained with its data: AWS would charge an unknown amount; "
        "to delete it: cloudgpu storage delete far --delete-data",
    ]
    assert ended.as_json()["storage_kept"][1]["monthly_usd"] is None
