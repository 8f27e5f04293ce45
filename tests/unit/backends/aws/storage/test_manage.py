"""`storage create` and `storage delete`: idempotence, rejected requests, and verified deletion."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import pytest

from cloudgpu.aws.session.server_time import ServerTime
from cloudgpu.aws.storage.storage_tags import StoragePart, TaggedStorage
from cloudgpu.backends.aws.storage.manage import StorageManager
from cloudgpu.backends.aws.storage.overview import list_storage
from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.retained_billing import storage_spending
from cloudgpu.backends.storage import StorageRequest
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import (
    BadRequestError,
    BusyError,
    CapacityError,
    CloudError,
    PlanError,
    StateError,
    TeardownError,
    UsageError,
)
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.storage_records import StorageRecords
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REQUEST = StorageRequest("sets", "lustre", "us-east-1", False, {"zone": "us-east-1c", "sizeGib": "1200"})


VPC = RegionNetwork(
    "vpc-1",
    subnets=(
        SubnetSeen("subnet-1", "us-east-1c", size=251, free=251, way_out="nat", target="nat-1"),
        SubnetSeen("subnet-2", "us-east-1c", size=251, free=251, way_out="public", target="igw-1"),
    ),
)


def held(record, *, users=(), kind="lustre", keep="true") -> TaggedStorage:
    tags = {
        "cloudgpu:storage": record.name,
        "cloudgpu:kind": kind,
        "cloudgpu:owner": record.owner,
        "cloudgpu:keep": keep,
        "cloudgpu:token": record.token,
    }
    size = Decimal(1200)
    parts = (
        StoragePart(kind, "fs-1", record.region, tags, "AVAILABLE", size, START, "SCRATCH_2"),
        StoragePart("security-group", "sg-1", record.region, tags),
    )
    return TaggedStorage(record.name, record.token, record.region, parts, users)


@dataclass
class ScriptedStorage:
    """A cloud whose engine creates one file system and whose search finds it."""

    target: str = "aws"
    endpoint: str = ""
    account_id: str = "111122223333"
    refuses: Exception | None = None
    refuses_end: list = field(default_factory=list)
    destroys: bool = True
    there: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    seen: object = None
    requested_engine: str = ""
    buckets: tuple = ()
    hint: str = ""
    vpc: object = VPC
    time: ServerTime | None = None
    created_at: datetime | None = None

    def account(self):
        return self.account_id

    def engine(self, record):
        self.record = record
        return self

    def up(self, stack, on_event):
        self.calls.append("up")
        self.stack = stack
        made = held(self.record, keep=stack.config["keep"])
        data = replace(made.parts[0], created_at=self.created_at)
        self.there.append(replace(made, parts=(data, *made.parts[1:])))
        if self.seen:
            self.seen(stack)
        if self.refuses:
            raise self.refuses
        return AppliedStack({"kind": "lustre", "id": "fs-1", "mountName": "mnt"})

    def destroy(self, stack, on_event):
        self.calls.append("destroy")
        if self.destroys:
            self.there = [storage for storage in self.there if storage.token != self.record.token]

    def found(self, region, name=""):
        return [storage for storage in self.there if storage.region == region and name in ("", storage.name)]

    def network(self, region, request):
        return self.vpc

    def require_bucket(self, region, url):
        if url not in self.buckets:
            raise BadRequestError(f"there is no bucket {url}", code="NoSuchBucket")

    def role_hint(self, record, cause):
        return self.hint

    def empty(self, storage):
        self.calls.append("empty")

    def end(self, storage):
        self.calls.append("end")
        if not self.refuses_end:
            self.there.remove(storage)
        return list(self.refuses_end)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def cloud():
    return ScriptedStorage()


@pytest.fixture
def events():
    return []


@pytest.fixture
def ledger(home):
    with open_ledger(f"sqlite:///{home.ledger_db}") as opened:
        yield opened


@pytest.fixture
def manager(cloud, home, events, ledger):
    clock = ManualClock(START)
    cloud.time = ServerTime(clock)
    context = Context(
        backend=None,  # not called: the manager receives the cloud
        ledger=ledger,
        records=RecordStore(home),
        home=home,
        clock=clock,
        owner="ada",
        emit=events.append,
    )
    return StorageManager(cloud, context, "lab")


def test_storage_record_is_written_before_the_first_call(manager, cloud, home):
    def seen(stack):
        record = StorageRecords(home).get("sets")
        assert (record.state, record.token) == ("making", stack.config["token"])

    cloud.seen = seen
    created = manager.create(REQUEST)
    assert created.made
    assert created.record.access_details["mount_name"] == "mnt"
    config = cloud.stack.config
    assert (config["storage"], config["owner"], config["keep"], config["protect"]) == ("sets", "ada", "true", "false")
    assert cloud.stack.program.name == "storage"
    assert cloud.stack.journal == home.root / "storage" / "sets" / "us-east-1.journal"


def test_second_storage_create_makes_no_calls(manager, cloud):
    token = manager.create(REQUEST).record.token
    again = manager.create(REQUEST)
    assert (again.made, again.record.token) == (False, token)
    assert cloud.calls == ["up"]


@pytest.mark.parametrize(
    "changes", [{"kind": "efs"}, {"disposable": True}, {"region": "us-west-2"}, {"config": {"sizeGib": "2400"}}]
)
def test_existing_storage_with_different_options_is_rejected(manager, changes):
    manager.create(REQUEST)
    with pytest.raises(UsageError, match="already exists with different options"):
        manager.create(replace(REQUEST, **changes))


def test_storage_of_version_0_1_0_has_the_same_options(manager):
    """That version recorded a list of one ID as the ID alone."""
    ids = {"subnetIds": "subnet-0a1b2c3d", "clientSecurityGroupIds": "sg-0a1b2c3d"}
    before = replace(REQUEST, config={**REQUEST.config, **ids})
    manager.create(before)
    lists = {key: json.dumps([text]) for key, text in ids.items()}
    assert not manager.create(replace(REQUEST, config={**REQUEST.config, **lists})).made
    other = {**lists, "subnetIds": '["subnet-1"]'}
    with pytest.raises(UsageError, match="already exists with different options"):
        manager.create(replace(REQUEST, config={**REQUEST.config, **other}))


def test_resumed_creation_uses_the_recorded_subnets(manager, cloud, home):
    chosen = manager.choose_subnets(REQUEST, NetworkRequest())
    record = manager.create(replace(REQUEST, subnets=chosen.ids)).record
    assert json.loads(cloud.stack.config["subnetIds"]) == ["subnet-2"]
    StorageRecords(home).save(record, state="making")
    assert manager.choose_subnets(REQUEST, NetworkRequest()) is None
    again = manager.create(replace(REQUEST, subnets={"us-east-1c": "subnet-1"}))
    assert json.loads(again.record.config["subnetIds"]) == ["subnet-2"]
    assert json.loads(cloud.stack.config["subnetIds"]) == ["subnet-2"]
    assert not manager.create(REQUEST).made


def test_storage_without_recorded_subnets_stays_where_it_is(manager, cloud):
    """A record of an earlier version."""
    manager.create(REQUEST)
    assert "subnetIds" not in cloud.stack.config
    assert manager.choose_subnets(REQUEST, NetworkRequest()) is None
    assert not manager.create(replace(REQUEST, subnets={"us-east-1c": "subnet-2"})).made


@pytest.mark.parametrize(
    ("vpc", "zone", "settings", "refusal"),
    [
        (
            VPC,
            "us-east-1d",
            {},
            ("vpc-1 has no subnet in us-east-1d", "create a subnet in us-east-1d"),
        ),
        (
            VPC,
            "us-east-1c",
            {"subnet_id": "subnet-9", "own_subnet": True, "own_network": True},
            ("subnet-9 is not in vpc-1", "change or remove the setting subnet_id"),
        ),
        (
            RegionNetwork(missing="us-east-1 has no default VPC", is_default=True),
            "us-east-1c",
            {},
            (
                "us-east-1 has no default VPC",
                "set vpc_id, set create_vpc to true, or run `aws ec2 create-default-vpc --region us-east-1`",
            ),
        ),
        (
            RegionNetwork(unknown="denied"),
            "us-east-1c",
            {"public_address": "private", "vpc_id": "vpc-1", "own_network": True},
            ("cannot tell which subnets of us-east-1 are private: denied", "set subnet_id"),
        ),
        (RegionNetwork("vpc-1"), "", {}, ("vpc-1 has no subnet", "")),
    ],
)
def test_file_system_without_a_suitable_subnet_is_refused(manager, cloud, vpc, zone, settings, refusal):
    cloud.vpc = vpc
    request = replace(REQUEST, kind="lustre" if zone else "efs", config={"zone": zone})
    with pytest.raises(PlanError) as refused:
        manager.choose_subnets(request, NetworkRequest(**settings))
    assert (list(refused.value.findings), refused.value.hint) == ([refusal[0]], refusal[1])
    assert cloud.calls == []
    assert manager.choose_subnets(replace(request, kind="s3"), NetworkRequest(**settings)) is None


def test_unreadable_vpc_leaves_the_choice_to_the_program(manager, cloud):
    cloud.vpc = RegionNetwork(unknown="denied")
    chosen = manager.choose_subnets(REQUEST, NetworkRequest())
    assert (chosen.ids, chosen.network.unknown) == ({}, "denied")


def test_storage_create_resumes_with_its_original_engine(manager, cloud, home):
    cloud.requested_engine = "pulumi"
    assert manager.create(REQUEST).record.engine == "pulumi"
    cloud.requested_engine = "direct"
    with pytest.raises(UsageError, match="created with the pulumi engine, not direct"):
        manager.create(REQUEST)
    cloud.requested_engine = ""  # no requested engine selects the right one
    assert not manager.create(REQUEST).made
    assert StorageRecords(home).get("sets").engine == "pulumi"


def test_unusable_engine_is_reported_before_a_record_is_written(manager, cloud, home, monkeypatch):
    def engine(record):
        raise UsageError("there is no Pulumi CLI")

    monkeypatch.setattr(cloud, "engine", engine)
    with pytest.raises(UsageError, match="no Pulumi CLI"):
        manager.create(REQUEST)
    assert StorageRecords(home).all() == []


def test_same_named_storage_of_another_owner_is_rejected_and_kept(manager, cloud, home):
    manager.create(REQUEST)
    cloud.there[0].parts[0].tags["cloudgpu:owner"] = "bob"
    StorageRecords(home).forget("sets")
    with pytest.raises(UsageError, match="belongs to bob"):
        manager.create(REQUEST)
    with pytest.raises(UsageError, match="belongs to bob"):
        manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_failed_storage_create_is_cleaned_up_immediately(manager, cloud, home):
    cloud.refuses = CapacityError("no Lustre left")
    with pytest.raises(CapacityError, match="no Lustre left"):
        manager.create(REQUEST)
    assert cloud.calls == ["up", "empty", "destroy"]
    assert StorageRecords(home).get("sets") is None
    assert cloud.there == []


def test_failed_create_and_failed_cleanup_are_reported_together(manager, cloud, home):
    cloud.refuses, cloud.destroys, cloud.refuses_end = CapacityError("no Lustre left"), False, ["lustre fs-1: busy"]
    with pytest.raises(
        TeardownError, match="no Lustre left; and the partly created storage could not be deleted"
    ) as caught:
        manager.create(REQUEST)
    assert caught.value.left == ("lustre fs-1: busy",)
    assert caught.value.hint == "cloudgpu storage delete sets"
    assert StorageRecords(home).get("sets").state == "making"


def test_interrupted_create_continues_with_its_own_token(manager, cloud, home):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.create(REQUEST)
    token = StorageRecords(home).get("sets").token
    cloud.refuses = None
    assert manager.create(REQUEST).record.token == token


def test_protected_data_is_deleted_only_with_delete_data(manager, cloud):
    manager.create(REQUEST)
    for call in (manager.delete, manager.find_deletable):
        with pytest.raises(UsageError, match="contains protected data") as caught:
            call("sets", "us-east-1", delete_data=False)
        assert caught.value.hint == "run `cloudgpu storage delete sets --delete-data` to delete it permanently"
    assert cloud.calls == ["up"]
    deleted = manager.delete("sets", "us-west-2", delete_data=True)
    assert deleted.known
    assert deleted.parts == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")


def test_disposable_storage_is_deleted_without_delete_data(manager, cloud, home):
    manager.create(replace(REQUEST, disposable=True))
    manager.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []
    assert StorageRecords(home).get("sets") is None


def test_storage_that_was_never_available_is_not_protected(manager, cloud):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.create(REQUEST)
    manager.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []


def test_storage_in_use_is_not_deleted(manager, cloud):
    record = manager.create(replace(REQUEST, disposable=True)).record
    cloud.there = [held(record, users=("i-1 (cluster demo)",), keep="false")]
    with pytest.raises(BusyError, match=r"in use by i-1 \(cluster demo\)"):
        manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_bucket_with_unknown_users_is_deleted(manager, cloud):
    record = manager.create(REQUEST).record
    cloud.there = [held(record, users=None, kind="s3")]
    manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy"]


def test_storage_missing_from_the_journal_is_deleted_by_tags(manager, cloud):
    manager.create(REQUEST)
    cloud.destroys = False
    manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy", "end"]


def test_storage_is_deleted_only_when_a_second_search_is_empty(manager, cloud, home):
    manager.create(REQUEST)
    cloud.destroys = False
    cloud.end = lambda storage: []
    with pytest.raises(TeardownError, match="storage sets is not deleted") as caught:
        manager.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")
    assert StorageRecords(home).get("sets").state == "deleting"
    with pytest.raises(BusyError, match="being deleted"):
        manager.create(REQUEST)


@pytest.mark.parametrize("lost", ["forgotten", "damaged"])
def test_tags_protect_data_if_the_record_is_lost(manager, cloud, home, lost):
    manager.create(REQUEST)
    if lost == "forgotten":
        StorageRecords(home).forget("sets")
    else:
        home.storage("sets").record.write_text("{")
    with pytest.raises(UsageError, match="protected data"):
        manager.delete("sets", "us-east-1", delete_data=False)
    assert manager.delete("sets", "us-east-1", delete_data=True).known is False
    assert cloud.calls == ["up", "end"]


def test_delete_of_nonexistent_storage_succeeds(manager, home):
    assert manager.delete("sets", "us-east-1", delete_data=False).parts == ()
    assert not (home.root / "storage" / "sets").exists()


@pytest.mark.parametrize(("region", "state"), [("us-east-1", "closed"), ("eu-west-1", "open")])
def test_row_left_by_a_killed_deletion_without_a_record_is_closed(manager, cloud, home, ledger, region, state):
    manager.create(REQUEST)
    StorageRecords(home).forget("sets")
    cloud.there.clear()
    assert manager.delete("sets", region, delete_data=True).parts == ()
    (row,) = ledger.entries(cluster="storage sets")
    assert row.state == state
    assert [part.estimated for part in row.parts.values()] == [True] * (state == "closed")


def test_storage_of_another_account_is_not_considered_deleted(manager, cloud):
    manager.create(REQUEST)
    cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="created in account 111122223333"):
        manager.delete("sets", "us-east-1", delete_data=True)


def test_storage_list_includes_other_owners_and_missing_storage(manager, cloud, home):
    record = manager.create(REQUEST).record
    cloud.there.append(held(replace(record, name="bobs", token="t2", owner="bob"), users=("i-1",)))
    manager.create(replace(REQUEST, name="lost", region="us-west-2"))
    cloud.there = [storage for storage in cloud.there if storage.name != "lost"]
    rows = list_storage(cloud, StorageRecords(home).all(), "us-east-1")
    assert [(row.name, row.owner, row.state, row.users, row.monthly_usd) for row in rows] == [
        ("bobs", "bob", "available", ("i-1",), Decimal("168.00")),
        ("lost", "ada", "not found", None, None),
        ("sets", "ada", "available", (), Decimal("168.00")),
    ]
    other = ScriptedStorage(target="rehearsal", endpoint="rehearsal:x")
    assert list_storage(other, StorageRecords(home).all(), "us-east-1") == ()


def test_tagged_storage_is_deleted_despite_bucket_and_journal_errors(manager, cloud, monkeypatch):
    manager.create(REQUEST)

    def damaged(stack, on_event):
        raise StateError("the journal is damaged")

    def denied(storage):
        raise CloudError("not authorized to perform s3:DeleteObject")

    monkeypatch.setattr(cloud, "destroy", damaged)
    monkeypatch.setattr(cloud, "empty", denied)
    with pytest.raises(TeardownError) as caught:
        manager.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("not authorized to perform s3:DeleteObject",)
    # Resources known only by tag were deleted although the journal and the bucket failed.
    assert cloud.there == []


def test_bucket_to_link_is_looked_up_before_anything_is_created(manager, cloud, home):
    linked = replace(REQUEST, config={**REQUEST.config, "linked": "s3://data/set"})
    with pytest.raises(BadRequestError, match="there is no bucket s3://data/set"):
        manager.create(linked)
    assert cloud.calls == []
    assert StorageRecords(home).get("sets") is None
    cloud.buckets = ("s3://data/set",)
    assert manager.create(linked).made


def test_failed_creation_points_at_the_missing_service_linked_role(manager, cloud):
    cloud.refuses = CloudError("mount target: User is not authorized", code="AccessDeniedException", hint="log in")
    with pytest.raises(CloudError) as without:
        manager.create(REQUEST)
    assert without.value.hint == "log in"
    cloud.hint = "the account has no role R"
    with pytest.raises(CloudError) as found:
        manager.create(REQUEST)
    assert (found.value.hint, cloud.there) == ("the account has no role R", [])


@pytest.fixture
def skewed(manager, cloud):
    """Set the cloud's clock ahead of this machine's, let storage be created 30 s later, and return the cloud's time."""

    def skewed(ahead_s, created_after_s=30):
        cloud.time.update(format_datetime(START + timedelta(seconds=ahead_s), usegmt=True))
        cloud.created_at = START + timedelta(seconds=ahead_s + created_after_s)
        return cloud.time

    return skewed


@pytest.mark.parametrize("ahead_s", [-86_400, -200, 0, 200, 86_400])
def test_storage_is_billed_from_its_creation_to_its_deletion_by_the_clouds_clock(
    manager, cloud, ledger, events, skewed, ahead_s
):
    time = skewed(ahead_s)
    manager._context.clock.sleep(60)
    record = manager.create(REQUEST).record
    manager._context.clock.sleep(3600)
    manager.delete("sets", "us-east-1", delete_data=True)
    (entry,) = ledger.entries(cluster="storage sets")
    assert (entry.launched_at, record.created_at) == (cloud.created_at, cloud.created_at)
    assert abs((entry.closed_at - cloud.created_at).total_seconds() - 3630) <= 1
    assert entry.closed_at == time.now()
    notes = [event.text for event in events if "clock is" in event.text]
    side = "behind" if ahead_s > 0 else "ahead of"
    assert len(notes) == (ahead_s != 0)
    assert all(f"s {side} the cloud's; costs are counted by the cloud's clock" in note for note in notes)


@pytest.mark.parametrize("after_s", [-(10**10), 10**8])
def test_implausible_creation_time_is_replaced_by_the_time_before_the_creation(manager, ledger, skewed, after_s):
    time = skewed(200, after_s)
    before = time.now()
    manager.create(REQUEST)
    (entry,) = ledger.entries(cluster="storage sets")
    assert entry.launched_at == before


def test_lost_row_of_storage_is_restored_with_the_clouds_creation_time(manager, cloud, home, ledger, skewed, tmp_path):
    skewed(200)
    manager.create(REQUEST)
    with open_ledger(f"sqlite:///{tmp_path}/other.db") as other:
        context = replace(manager._context, ledger=other)
        again = StorageManager(cloud, context, "lab")
        again.delete("sets", "us-east-1", delete_data=True)
        (entry,) = other.entries(cluster="storage sets")
    assert entry.launched_at == cloud.created_at


def test_storage_of_a_killed_creation_is_billed_from_the_clouds_creation_time(manager, cloud, home, ledger, skewed):
    skewed(200)
    record = manager.create(REQUEST).record
    StorageRecords(home).save(record, state="making")  # as if the command was killed before it recorded the creation
    billing = manager._billing
    row = replace(storage_spending(record), token="killed")
    billing.open(row)
    billing.ended("storage sets", ["killed"], found=True, created={"killed": cloud.created_at})
    entry = next(one for one in ledger.entries(cluster="storage sets") if one.spending.entry_id.startswith("killed"))
    assert (entry.launched_at, entry.state) == (cloud.created_at, "closed")
