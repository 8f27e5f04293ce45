"""Storage during a cluster's lifetime: found, created, moved, deleted and retained."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.aws.clusters.storage import ClusterStorage, clear_deletion_marks
from cloudgpu.backends.aws.storage_manager import StorageManager
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.backends.storage import RetainedResource, StorageOutcome
from cloudgpu.cli.render.cluster import deletion_lines
from cloudgpu.cloud import StoragePart, TaggedStorage
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import StateError, UsageError
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.storage_records import StorageRecords, missing_storage, unique_name
from tests.manual_clock import ManualClock
from tests.unit.app.conftest import START

SETS = {"name": "sets", "to": "/sets", "mode": "ro"}
SCRATCH = {"name": "scratch", "to": "/scratch", "make": {"kind": "lustre", "size": "1200GiB"}, "keep": False}
KEPT = {"name": "kept", "to": "/kept", "make": {"kind": "ebs", "size": "100GiB"}}


HOMES = {"name": "homes", "to": "/homes", "make": {"kind": "efs"}}
VPC = RegionNetwork(
    "vpc-1",
    subnets=tuple(
        SubnetSeen(f"subnet-{number}", zone, size=251, free=251, way_out=way_out, target="x-1")
        for number, zone, way_out in (
            (1, "us-east-1c", "nat"),
            (2, "us-east-1c", "public"),
            (3, "us-east-1c", "public"),
            (4, "us-east-1d", "nat"),
            (5, "us-east-1d", "public"),
            (6, "us-east-1f", "none"),
        )
    ),
)


def tagged_storage(name, kind, zone="", *, token="t", keep="true", owner="ann", made_for=""):
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
    """Cloud storage whose engine creates what the record specifies."""

    target: str = "rehearsal"
    endpoint: str = "rehearsal:KEY"
    there: list = field(default_factory=list)
    attached: list = field(default_factory=list)
    requested_engine: str = ""
    vpc: object = VPC
    time: ServerTime = field(default_factory=lambda: ServerTime(ManualClock(START)))

    def account(self):
        return "111122223333"

    def engine(self, record):
        self.record = record
        return self

    def up(self, stack, on_event):
        keep = stack.config["keep"]
        self.subnets = stack.config.get("subnetIds", "")
        made = tagged_storage(self.record.name, self.record.kind, stack.config.get("zone", ""), token=self.record.token,
                      keep=keep, made_for=stack.config.get("madeFor", ""))  # fmt: skip
        self.there.append(made)
        return AppliedStack({"id": made.data.id})

    def destroy(self, stack, on_event):
        self.there = [storage for storage in self.there if storage.token != self.record.token]

    def found(self, region, name=""):
        return [storage for storage in self.there if storage.region == region and name in ("", storage.name)]

    def network(self, region, request):
        self.asked = request
        return self.vpc

    def empty(self, storage):
        pass

    def end(self, storage):
        self.there.remove(storage)
        return []

    def attach(self, region, volume_id, instance_id, number):
        self.attached.append((volume_id, instance_id, number))


@pytest.fixture
def stores(workspace):
    workspace.cloud.stores = Stores()
    return workspace.cloud.stores


@pytest.fixture
def cluster_storage(workspace, stores):
    return ClusterStorage(workspace.context)


@pytest.fixture
def new_cluster(workspace, make):
    """The record of a cluster that is being created, and a candidate for it."""
    candidate = replace(make.candidate(), region="us-east-1", zone="us-east-1c")
    record = workspace.provisioning._new_record(make.plan(candidate), "demo", "")
    return workspace.context.records.save_cluster(record, START), candidate


def recipe(make, *storage):
    plain = make.plan(make.candidate()).recipe
    return Recipe.model_validate({**plain.model_dump(by_alias=True, mode="json"), "storage": list(storage)})


def names(stores):
    return sorted(storage.name for storage in stores.there)


def test_existing_storage_is_mounted_and_survives_the_cluster(cluster_storage, stores, new_cluster, make, workspace):
    stores.there = [tagged_storage("sets", "lustre", "us-east-1c")]
    record, ready = cluster_storage.provide(recipe(make, SETS), *new_cluster, {})
    (mount,) = ready.mounts
    assert (mount.to, mount.read_only, mount.mount_name) == ("/sets", True, "mnt")
    assert mount.source == "fs-sets.fsx.us-east-1.amazonaws.com"
    assert ready.groups == ("sg-sets",)
    assert [row.ends for row in workspace.context.records.cluster("demo").placement.storage] == [False]
    ended = cluster_storage.delete_marked(record, "us-east-1")
    assert (ended.ended, [storage.name for storage in ended.kept]) == ((), ["sets"])
    assert names(stores) == ["sets"]


def test_storage_created_for_cluster_has_unique_name_and_is_deleted(
    cluster_storage, stores, new_cluster, make, workspace
):
    record, _ = cluster_storage.provide(recipe(make, SCRATCH), *new_cluster, {})
    (row,) = record.placement.storage
    assert row.name == unique_name(recipe(make, SCRATCH).storage[0], record.identity.token) != "scratch"
    assert stores.there[0].made_for == "demo"
    assert cluster_storage.delete_marked(clear_deletion_marks(record), "us-east-1").ended == (row.name,)
    assert stores.there == []
    assert workspace.context.ledger.entries(cluster=f"storage {row.name}")[0].state == "closed"


def test_kept_storage_is_deleted_only_if_cluster_never_ran(cluster_storage, stores, new_cluster, make):
    record, _ = cluster_storage.provide(recipe(make, KEPT), *new_cluster, {})
    again, _ = cluster_storage.provide(recipe(make, KEPT), record, new_cluster[1], {})
    assert [row.ends for row in again.placement.storage] == [
        True
    ]  # a killed `up` continues, and no run has used the storage yet
    stood = clear_deletion_marks(again)
    assert [row.ends for row in stood.placement.storage] == [False]
    assert [storage.name for storage in cluster_storage.delete_marked(stood, "us-east-1").kept] == ["kept"]
    cluster_storage.delete_marked(again, "us-east-1")
    assert stores.there == []


def test_kept_storage_that_another_cluster_began_to_use_outlives_a_failed_launch(
    cluster_storage, stores, new_cluster, make, workspace
):
    record, candidate = new_cluster
    first, _ = cluster_storage.provide(recipe(make, KEPT), record, candidate, {})
    other = replace(record, identity=replace(record.identity, name="other", token="t2"))
    cluster_storage.provide(recipe(make, KEPT), workspace.context.records.save_cluster(other, START), candidate, {})
    ended = cluster_storage.delete_marked(first, "us-east-1")
    assert (ended.ended, [storage.name for storage in ended.kept]) == ((), ["kept"])
    assert names(stores) == ["kept"]
    elsewhere = replace(candidate, zone="us-east-1d")
    with pytest.raises(StateError, match="is in us-east-1c"):
        cluster_storage.provide(recipe(make, KEPT), first, elsewhere, {})
    assert names(stores) == ["kept"]


@pytest.mark.parametrize(("size", "left"), [(Decimal(0), []), (Decimal(1), ["kept"]), (None, ["kept"])])
def test_kept_bucket_outlives_a_failed_launch_if_it_contains_data(
    cluster_storage, stores, new_cluster, make, size, left
):
    bucket = {**KEPT, "make": {"kind": "s3"}}
    record, _ = cluster_storage.provide(recipe(make, bucket), *new_cluster, {})
    (created,) = stores.there
    stores.there = [replace(created, parts=(replace(created.data, size_gib=size), *created.parts[1:]))]
    cluster_storage.delete_marked(record, "us-east-1")
    assert names(stores) == left


def test_kept_storage_that_another_command_created_in_the_meantime_is_not_deleted(
    cluster_storage, stores, new_cluster, make, monkeypatch
):
    create = StorageManager.create

    def create_after_another_command(manager, request):
        create(manager, request)
        return create(manager, request)

    monkeypatch.setattr(StorageManager, "create", create_after_another_command)
    record, _ = cluster_storage.provide(recipe(make, KEPT), *new_cluster, {})
    assert [row.ends for row in record.placement.storage] == [False]
    cluster_storage.delete_marked(record, "us-east-1")
    assert names(stores) == ["kept"]


def test_kept_storage_of_another_cluster_is_attached_and_not_deleted(cluster_storage, stores, new_cluster, make):
    stores.there = [tagged_storage("kept", "ebs", "us-east-1c", owner="bob")]
    record, _ = cluster_storage.provide(recipe(make, KEPT), *new_cluster, {})
    cluster_storage.attach(record, ("i-1",))
    assert stores.attached == [("fs-kept", "i-1", 0)]
    assert cluster_storage.delete_marked(record, "us-east-1").ended == ()
    assert names(stores) == ["kept"]


def test_storage_is_recreated_in_the_zone_of_the_next_candidate(cluster_storage, stores, new_cluster, make, workspace):
    record, candidate = new_cluster
    first, _ = cluster_storage.provide(recipe(make, SCRATCH), record, candidate, {})
    second, _ = cluster_storage.provide(recipe(make, SCRATCH), first, replace(candidate, zone="us-east-1d"), {})
    assert [storage.data.zone for storage in stores.there] == ["us-east-1d"]
    assert [row.zone for row in second.placement.storage] == ["us-east-1d"]
    third, _ = cluster_storage.provide(recipe(make, SCRATCH), second, replace(candidate, zone="us-east-1d"), {})
    assert third.placement.storage == second.placement.storage


def test_nonexistent_or_unreachable_storage_is_rejected(cluster_storage, stores, new_cluster, make):
    with pytest.raises(StateError, match="does not exist"):
        cluster_storage.provide(recipe(make, SETS), *new_cluster, {})
    stores.there = [tagged_storage("sets", "lustre", "us-east-1d")]
    with pytest.raises(StateError, match="is in us-east-1d"):
        cluster_storage.provide(recipe(make, SETS), *new_cluster, {})
    stores.there = [tagged_storage("sets", "efs")]
    with pytest.raises(UsageError, match="VPC that is created with the cluster"):
        cluster_storage.provide(recipe(make, SETS), *new_cluster, {"createVpc": "true"})


def test_new_lustre_is_in_the_subnet_of_the_nodes(cluster_storage, stores, new_cluster, make):
    record, candidate = new_cluster
    placed = replace(candidate, subnet="subnet-3")
    cluster_storage.provide(recipe(make, SCRATCH), record, placed, {}, {"us-east-1c": "subnet-2"})
    assert stores.subnets == '["subnet-3"]'


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("auto", {}), '["subnet-3", "subnet-5"]'),
        (("auto", {"vpcId": "vpc-1", "reach": "ssm", "securityGroupId": "sg-1"}), '["subnet-3", "subnet-4"]'),
        (("private", {"vpcId": "vpc-1"}), '["subnet-3", "subnet-4"]'),
    ],
)
def test_new_efs_has_a_mount_target_in_every_zone_in_which_nodes_may_run(
    cluster_storage, stores, new_cluster, make, settings, expected
):
    way, existing = settings
    record, candidate = new_cluster
    placed = replace(candidate, subnet="subnet-3", public_address=way)
    cluster_storage.provide(recipe(make, HOMES), record, placed, existing, {"us-east-1c": "subnet-3"})
    assert stores.subnets == expected
    assert (stores.asked.vpc_id, stores.asked.security_group_id) == (
        existing.get("vpcId", ""),
        existing.get("securityGroupId", ""),
    )


def test_unknown_subnets_are_chosen_by_the_program(cluster_storage, stores, new_cluster, make):
    cluster_storage.provide(recipe(make, HOMES), *new_cluster, {})
    assert stores.subnets == ""


def test_efs_is_mounted_from_the_mount_target_in_the_zone_of_the_nodes(cluster_storage, stores, new_cluster, make):
    files = tagged_storage("sets", "efs")
    tags = files.parts[0].tags
    targets = [
        StoragePart("mount-target", f"fsmt-{zone}", "us-east-1", tags, zone=zone, ip=ip)
        for zone, ip in (("us-east-1c", "10.0.0.5"), ("us-east-1d", "10.0.1.5"))
    ]
    stores.there = [replace(files, parts=(*targets, *files.parts))]
    _, ready = cluster_storage.provide(recipe(make, SETS), *new_cluster, {})
    assert [mount.source for mount in ready.mounts] == ["10.0.0.5"]


def test_efs_without_a_mount_target_in_the_zone_of_the_nodes_is_rejected(cluster_storage, stores, new_cluster, make):
    files = tagged_storage("sets", "efs")
    target = StoragePart("mount-target", "fsmt-1", "us-east-1", files.parts[0].tags, zone="us-east-1d")
    stores.there = [replace(files, parts=(target, *files.parts))]
    with pytest.raises(StateError, match="sets is in us-east-1d, but the nodes would be in us-east-1c"):
        cluster_storage.provide(recipe(make, SETS), *new_cluster, {})


@pytest.mark.parametrize("way", ["nat", "private-nat"])
def test_file_system_behind_nat_is_rejected_before_it_is_created(cluster_storage, stores, new_cluster, make, way):
    record, candidate = new_cluster
    with pytest.raises(UsageError, match="the VPC that is created for nodes behind NAT"):
        cluster_storage.provide(recipe(make, SCRATCH), record, replace(candidate, public_address=way), {})
    assert stores.there == []


def test_unrecorded_storage_is_deleted_only_by_owner_and_keep_tags(cluster_storage, stores):
    own = {"keep": "false", "made_for": "demo"}
    stores.there = [
        tagged_storage("own", "efs", token="a", **own),
        tagged_storage("bobs", "efs", token="b", owner="bob", **own),
        tagged_storage("kept", "efs", token="c", made_for="demo"),
    ]
    assert cluster_storage.delete_unrecorded("demo", ["us-east-1"]).ended == ("own",)
    assert names(stores) == ["bobs", "kept"]


def test_cluster_without_matching_storage_is_not_reused(cluster_storage, stores, new_cluster, make):
    stores.there = [tagged_storage("sets", "efs")]
    record, _ = cluster_storage.provide(recipe(make, SETS), *new_cluster, {})
    assert missing_storage(recipe(make, SETS), record.placement.storage) == []
    assert missing_storage(recipe(make, {**SETS, "to": "/other"}), record.placement.storage) == ["sets"]
    assert missing_storage(recipe(make, {**SETS, "mode": "rw"}), record.placement.storage) == ["sets"]


def test_storage_is_billed_by_the_hour_without_node_hours(cluster_storage, new_cluster, make, workspace):
    record, _ = cluster_storage.provide(recipe(make, SCRATCH), *new_cluster, {})
    (row,) = workspace.context.ledger.report(by="run", now=START + timedelta(hours=10)).rows
    assert row.key == f"storage {record.placement.storage[0].name}"
    assert (row.node_hours, row.open_entries) == (0, 1)
    assert row.usd == Decimal("2.333333")  # 10 of 720 hours, at 168 USD a month
    StorageRecords(workspace.context.home).forget(record.placement.storage[0].name)


def test_down_output_lists_deleted_and_retained_storage():
    kept = RetainedResource("storage", "sets", "t", "lustre", "ann", "us-east-1", "fs-1", None, None, Decimal(168))
    unknown = replace(kept, name="far", kind="ebs", region="eu-west-1", monthly_usd=None, simulated=True)
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


def test_orphaned_storage_with_damaged_record_is_deleted_by_tags(cluster_storage, stores, workspace):
    stores.there = [tagged_storage("sets", "efs", keep="false")]
    path = workspace.context.home.storage("sets").record
    path.parent.mkdir(parents=True)
    path.write_text("{")
    StorageManager(workspace.context.cloud, workspace.context, "").delete_orphan("sets", "t", "us-east-1")
    assert stores.there == []
    assert any("searching by tag instead" in note for note in workspace.notes)
